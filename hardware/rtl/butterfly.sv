// One datapath for both directions of the transform and for the product with the key.
//
//   OP_FORWARD (Cooley-Tukey)      x = a + b w        y = a - b w
//   OP_INVERSE (Gentleman-Sande)   x = a + b          y = (b - a) w
//   OP_PRODUCT, OP_COPY            y = b w
//
// all mod p; with w = -psi^-k = psi^(N-k), (b - a) w is (a - b) psi^-k, so both directions share one table.
// Latency 16 cycles (fc_pkg::BUTTERFLY_LATENCY), one butterfly a cycle; op travels with its operands.
module butterfly
#(
    parameter int B_SHIFT = 3,  // the term of C in which the limbs differ
    parameter int CA = 26,
    parameter int CB = 17,
    localparam int K = fc_pkg::K,
    localparam int S = fc_pkg::S
) (
    input  logic         clk,
    input  logic [1:0]   op,
    input  logic [K-1:0] a,
    input  logic [K-1:0] b,
    input  logic [K-1:0] w,
    output logic [K-1:0] x,
    output logic [K-1:0] y
);
  /*verilator no_inline_module*/  // one function for all of them, not one each
  localparam int C = (1 << fc_pkg::C_A) + (1 << B_SHIFT) - (1 << fc_pkg::C_D);
  localparam logic [K:0] P = {1'b1, {K{1'b0}}} - ((K + 1)'(C) << S) + 1'b1;

  // Before the multiplier: sum and difference, reduced.
  logic [K:0] sum, difference, sum_less, sum_kept;
  logic [K-1:0] a1, b1, w1, ahead, factor, w2;
  logic [1:0] op1;
  always_comb begin
    sum_less = sum - P;
    sum_kept = sum_less[K] ? sum : sum_less;
  end
  always_ff @(posedge clk) begin
    sum        <= {1'b0, a} + {1'b0, b};
    difference <= {1'b0, b} - {1'b0, a};
    a1 <= a;
    b1 <= b;
    w1 <= w;
    op1 <= op;

    ahead <= op1 == fc_pkg::OP_INVERSE ? sum_kept[K-1:0] : a1;
    factor <= op1 == fc_pkg::OP_INVERSE ? difference[K-1:0] + (difference[K] ? P[K-1:0] : '0) : b1;
    w2 <= w1;
  end

  logic [K-1:0] product, passed;
  modmul #(
      .K(K), .S(S), .A(fc_pkg::C_A), .B(B_SHIFT), .D(fc_pkg::C_D), .E(fc_pkg::C_E), .CA(CA), .CB(CB)
  ) u_modmul (.clk, .a(factor), .b(w2), .r(product));
  delay #(.W(K), .LATENCY(fc_pkg::MODMUL_LATENCY)) u_passed (.clk, .d(ahead), .q(passed));
  logic forward;
  delay #(.W(1), .LATENCY(fc_pkg::MODMUL_LATENCY + 1)) u_op (.clk, .d(op1 == fc_pkg::OP_FORWARD), .q(forward));

  // After it: the same two, or what came through.
  logic [K:0] up, down, up_less, up_kept;
  logic [K-1:0] passed1, product1;
  logic forward1;
  always_comb begin
    up_less = up - P;
    up_kept = up_less[K] ? up : up_less;
  end
  always_ff @(posedge clk) begin
    up   <= {1'b0, passed} + {1'b0, product};
    down <= {1'b0, passed} - {1'b0, product};
    passed1 <= passed;
    product1 <= product;
    forward1 <= forward;

    x <= forward1 ? up_kept[K-1:0] : passed1;
    y <= forward1 ? down[K-1:0] + (down[K] ? P[K-1:0] : '0) : product1;
  end
endmodule
