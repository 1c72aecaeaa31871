// fold.sv: the result is below p, and what two folds and a subtraction in wide arithmetic give.
//
// That these keep the remainder is the definition of p, 2^K = C 2^S - 1 + p: with x = hi 2^K + lo, a fold is
// hi C 2^S + lo - hi = x - hi p. Where K is small enough for a solver, the remainder operator says so too. Registers are
// wires here (through.v).
module fold_exact #(
    parameter int K = 53,
    parameter int S = 13,
    parameter int A = 5,
    parameter int B = 3,
    parameter int D = 1,
    parameter int E = -1
) (
    input logic           clk,
    input logic [2*K-1:0] x
);
  localparam int C = (A < 0 ? 0 : 1 << A) + (B < 0 ? 0 : 1 << B) - (D < 0 ? 0 : 1 << D) - (E < 0 ? 0 : 1 << E);
  localparam logic [K:0] P = {1'b1, {K{1'b0}}} - ((K + 1)'(C) << S) + 1'b1;
  localparam int W = 2 * K + 2;  // no fold of 2 K bits comes near

  logic [K-1:0] r;
  fold #(.K(K), .S(S), .A(A), .B(B), .D(D), .E(E)) u_fold (.clk, .x, .r);

  function automatic logic [W-1:0] folded(input logic [W-1:0] high, input logic [W-1:0] low);
    logic [W-1:0] times;
    times = (A < 0 ? '0 : high << A) + (B < 0 ? '0 : high << B) - ((D < 0 ? '0 : high << D) + (E < 0 ? '0 : high << E));
    folded = (times << S) + (low - high);
  endfunction

  logic [W-1:0] once, twice, wanted;
  always_comb begin
    once = folded(W'(x[2*K-1:K]), W'(x[K-1:0]));
    twice = folded(once >> K, W'(once[K-1:0]));
    wanted = twice < W'(P) ? twice : twice - W'(P);
    assert (W'(r) == wanted);
    assert (r < P);
  end
  if (K <= 8) begin : g_remainder
    always_comb assert (r == x % P);
  end
endmodule
