// The parts that are tried alone, side by side: one build.
module units (
    input  logic         clk,
    input  logic         rst,
    // modmul for five primes, K = 53, 53, 54, 55, 53.
    input  logic [54:0]  a,
    input  logic [54:0]  b,
    output logic [52:0]  r0,
    output logic [52:0]  r1,
    output logic [53:0]  r2,
    output logic [54:0]  r3,
    output logic [52:0]  r4,
    // The same product by ECP5's partial products.
    output logic [52:0]  r5,
    // butterfly of limb 0
    input  logic [1:0]   op,
    input  logic [52:0]  w,
    output logic [52:0]  x,
    output logic [52:0]  y,
    // bit_packer, and bit_unpacker behind it
    input  logic [7:0]   width,
    input  logic         start,
    input  logic [15:0]  packets,
    input  logic [12:0]  count,
    input  logic [12:0]  count_last,
    input  logic         word_valid,
    input  logic         word_last,
    input  logic [127:0] word,
    output logic         beat_valid,
    output logic         beat_last,
    output logic [15:0]  beat_keep,
    output logic [127:0] beat,
    input  logic         in_valid,
    output logic         in_ready,
    input  logic         in_last,
    input  logic [127:0] in_data,
    input  logic         room,
    output logic         out_valid,
    output logic [127:0] out_data,
    output logic         wrong_length,
    output logic         wrong_padding
);
  // The device's, by its own constants.
  modmul #(.K(fc_pkg::K), .S(fc_pkg::S), .A(fc_pkg::C_A), .B(fc_pkg::C_B_0), .D(fc_pkg::C_D), .E(fc_pkg::C_E))
      u_0 (.clk, .a(a[52:0]), .b(b[52:0]), .r(r0));
  modmul #(.K(fc_pkg::K), .S(fc_pkg::S), .A(fc_pkg::C_A), .B(fc_pkg::C_B_1), .D(fc_pkg::C_D), .E(fc_pkg::C_E))
      u_1 (.clk, .a(a[52:0]), .b(b[52:0]), .r(r1));
  // 2^54 - 21 * 2^13 + 1 and 2^55 - 38 * 2^13 + 1, 109 bits of q; 2^53 - 31 * 2^12 + 1, of the preset `fast`.
  modmul #(.K(54), .A(4), .B(3), .D(1), .E(0)) u_2 (.clk, .a(a[53:0]), .b(b[53:0]), .r(r2));
  modmul #(.K(55)) u_3 (.clk, .a, .b, .r(r3));
  modmul #(.S(12), .A(5), .B(-1), .D(0), .E(-1)) u_4 (.clk, .a(a[52:0]), .b(b[52:0]), .r(r4));
  modmul #(.B(3), .CA(18), .CB(18)) u_5 (.clk, .a(a[52:0]), .b(b[52:0]), .r(r5));
  butterfly u_butterfly (.clk, .op, .a(a[52:0]), .b(b[52:0]), .w, .x, .y);
  bit_packer u_packer (
      .clk, .rst, .width, .valid(word_valid), .last(word_last), .word, .out_valid(beat_valid), .out_last(beat_last),
      .out_keep(beat_keep), .out_data(beat));
  bit_unpacker u_unpacker (
      .clk, .rst, .start, .width, .packets, .count, .count_last, .in_valid, .in_ready, .in_last, .in_data, .room,
      .out_valid, .out_data, .wrong_length, .wrong_padding);
endmodule
