// Plaintext and noise of c0 - a s, exactly. Latency 17 cycles (fc_pkg::DIVIDE_LATENCY), one coefficient a cycle.
//
// With x = c0 - a s mod q: m = floor((x + delta/2) / delta) and noise = x - m delta where m < t; 0 and x - q from
// q - delta/2 on; otherwise `outside`. fedbit-paper's delta gives {noise (96 bits, signed), m (32 bits)}, a delta of
// 2^shift {m, noise + delta/2} with `shift` bits of noise. `refused`: c0 is not below q.
module decryptor
#(
    parameter int CA = 26,
    parameter int CB = 17
) (
    input  logic         clk,
    input  logic         by_shift,
    input  logic [106:0] half,     // delta / 2
    input  logic [105:0] product,
    input  logic [127:0] c0,
    output logic [127:0] word,
    output logic         outside,
    output logic         refused
);
  localparam int W = 107;

  // x, y = x + delta/2 and z = y - q.
  logic [W-1:0] d, y, y1;
  logic [105:0] x;
  logic [W:0] z1, z;  // two's complement
  logic large1;
  always_ff @(posedge clk) begin
    d <= {1'b0, c0[105:0]} - {1'b0, product};
    large1 <= c0[127:106] != 0 || c0[105:0] >= fc_constants_pkg::Q;

    x <= d[105:0] + (d[W-1] ? fc_constants_pkg::Q : '0);

    y <= {1'b0, x} + half;

    y1 <= y;
    z1 <= {1'b0, y} - {2'b0, fc_constants_pkg::Q};
  end
  // 44 = 115 - 71: y / 2^71 times 2^115 / delta, of which the upper 32 bits are m or m - 1.
  logic [76:0] estimate;
  mul_pipe #(.WA(36), .WB(41), .CA(CA), .CB(CB)) u_estimate (.clk, .a(y[106:71]), .b(fc_constants_pkg::DELTA_INV), .p(estimate));
  logic [31:0] m0, m1, m;
  logic above;  // m is one more
  logic [106:0] back;
  assign m0 = estimate[75:44];
  mul_pipe #(.WA(75), .WB(32), .CA(CA), .CB(CB)) u_back (.clk, .a(fc_constants_pkg::DELTA), .b(m0), .p(back));
  delay #(.W(32), .LATENCY(fc_pkg::MUL_LATENCY)) u_m (.clk, .d(m0), .q(m1));

  logic [W-1:0] y2, y3, y4, y5;
  logic [W:0] z4;
  delay #(.W(W), .LATENCY(2 * fc_pkg::MUL_LATENCY - 1)) u_y (.clk, .d(y1), .q(y2));
  delay #(.W(W + 1), .LATENCY(2 * fc_pkg::MUL_LATENCY + 1)) u_z (.clk, .d(z1), .q(z));
  delay #(.W(1), .LATENCY(fc_pkg::DIVIDE_LATENCY - 1)) u_large (.clk, .d(large1), .q(refused));

  // The remainder, once more than delta at most.
  logic [76:0] r, r_less, r1, noise;
  logic [31:0] m2;
  always_ff @(posedge clk) begin
    r <= 77'(y2 - back);
    m2 <= m1;
    y3 <= y2;

    r1 <= r_less[76] ? r : r_less;
    m <= m2;
    above <= !r_less[76];
    y4 <= y3;
  end
  assign r_less = r - 77'(fc_constants_pkg::DELTA);

  logic [31:0] m3;
  logic in_range, at_end;
  always_ff @(posedge clk) begin
    noise <= r1 - half[76:0];
    m3 <= m + 32'(above);
    y5 <= y4;
    in_range <= by_shift ? !y4[106] && !y4[105]
              : above ? m < fc_constants_pkg::T - 1'b1 : m < fc_constants_pkg::T;
    z4 <= by_shift ? z : z - {1'b0, half};
    at_end <= !z[W];

    word <= in_range ? (by_shift ? 128'(y5) : {{19{noise[76]}}, noise, m3})
          : by_shift ? 128'(z4[106:0]) : {z4[95:0], 32'b0};
    outside <= !in_range && !at_end;
  end
endmodule
