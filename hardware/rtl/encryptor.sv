// round((mask + delta m mod q) / 2^drop). Latency 11 cycles (fc_pkg::ENCRYPT_LATENCY), one coefficient a cycle.
//
// delta is fedbit-paper's constant, or 2^shift. `refused`, a cycle later: m is not below t, or the result does not
// fit `keep` (ones where a word on the wire has bits). t is a constant, or 2^(105 - shift), above which `forbid` has
// ones.
module encryptor
#(
    parameter int CA = 26,
    parameter int CB = 17
) (
    input  logic         clk,
    input  logic         by_shift,
    input  logic [6:0]   shift,
    input  logic [127:0] forbid,
    input  logic [4:0]   drop,
    input  logic [127:0] keep,
    input  logic [105:0] mask,
    input  logic [127:0] m,
    output logic [127:0] word,
    output logic         refused
);
  // delta m, both ways.
  logic [106:0] product;
  mul_pipe #(.WA(75), .WB(32), .CA(CA), .CB(CB)) u_mul (.clk, .a(fc_constants_pkg::DELTA), .b(m[31:0]), .p(product));
  logic [105:0] shifted1, shifted2, shifted3, shifted5;
  always_ff @(posedge clk) begin
    shifted1 <= 106'(m[105:0] << shift[2:0]);
    shifted2 <= 106'(shifted1 << {shift[4:3], 3'b0});
    shifted3 <= 106'(shifted2 << {shift[6:5], 5'b0});
  end
  delay #(.W(106), .LATENCY(fc_pkg::MUL_LATENCY - 3)) u_shifted (.clk, .d(shifted3), .q(shifted5));

  logic [105:0] mask5;
  delay #(.W(106), .LATENCY(fc_pkg::MUL_LATENCY)) u_mask (.clk, .d(mask), .q(mask5));
  logic [127:0] m1;
  logic forbidden, above, too_large, outside2, outside;
  always_ff @(posedge clk) begin
    m1 <= m;

    forbidden <= (m1 & forbid) != 0;
    above <= m1[127:32] != 0;
    too_large <= m1[31:0] >= fc_constants_pkg::T;
  end
  assign outside2 = by_shift ? forbidden : above || too_large;
  delay #(.W(1), .LATENCY(fc_pkg::ENCRYPT_LATENCY - 2)) u_outside (.clk, .d(outside2), .q(outside));

  localparam int W = 107;
  logic [W-1:0] sum, sum1, less, rounded, down1, down2;
  logic [105:0] c0;
  logic [30:0] half;
  always_ff @(posedge clk) begin
    half <= (31'd1 << drop) >> 1;  // stays as it is for a whole command

    sum <= {1'b0, mask5} + (by_shift ? {1'b0, shifted5} : product);

    less <= sum - {1'b0, fc_constants_pkg::Q};
    sum1 <= sum;

    c0 <= less[W-1] ? sum1[105:0] : less[105:0];

    rounded <= {1'b0, c0} + W'(half);

    down1 <= rounded >> {drop[4:3], 3'b0};
    down2 <= down1 >> drop[2:0];
  end
  assign word = 128'(down2);
  always_ff @(posedge clk) refused <= outside || (word & ~keep) != 0;
endmodule
