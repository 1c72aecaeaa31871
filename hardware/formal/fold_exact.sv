// fold.sv at full width: for every x < p^2, or any below 2^2K, the result is below p and congruent to x.
//
// Not finished yet (proofs.py): z3 refutes broken versions in seconds, and was not seen to end on this one.
// x - r is p times what the folds took off; p is written as shifts, so the solver sees additions only. The product
// before it is proved by modmul_small at a small width, and tried at full width by tests.
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
  localparam int W = 2 * K + 2;

  logic [K-1:0] r;
  fold #(.K(K), .S(S), .A(A), .B(B), .D(D), .E(E)) u_fold (.clk, .x, .r);

  // x stays, so that after 7 cycles everything in the pipeline is of it.
  logic [2*K-1:0] held;
  logic [3:0] age = 0;
  always_ff @(posedge clk) begin
    if (age == 0) held <= x;
    if (age != 15) age <= age + 1'b1;
    assume (age == 0 || x == held);
  end

  function automatic logic [W-1:0] times_p(input logic [W-1:0] k);
    times_p = (k << K) + k - (((A < 0 ? '0 : k << A) + (B < 0 ? '0 : k << B) - (D < 0 ? '0 : k << D) -
              (E < 0 ? '0 : k << E)) << S);
  endfunction
  // What is above bit K goes, times p; then what is above it again.
  logic [W-1:0] high, once, taken;
  assign high = W'(held[2*K-1:K]);
  assign once = W'(held) - times_p(high);
  assign taken = high + (once >> K);
  always_ff @(posedge clk) begin
    if (age >= 8) begin
      assert ({1'b0, r} < P);
      assert (W'(held) == W'(r) + times_p(taken) || W'(held) == W'(r) + times_p(taken) + W'(P));
    end
  end
endmodule
