// x mod p for x < 2^2K and p = 2^K - C 2^S + 1, without a multiplier.
//
// Latency 7 cycles, one number a cycle. Two folds by 2^K = C 2^S - 1 leave less than 2p while (C 2^S)^2 < 2^(K-1);
// hardware/formal/fold_exact states range and congruence.
module fold #(
    parameter int K = 53,
    parameter int S = 13,
    parameter int A = 5,
    parameter int B = 3,
    parameter int D = 1,
    parameter int E = -1
) (
    input  logic           clk,
    input  logic [2*K-1:0] x,
    output logic [K-1:0]   r
);
  localparam int C = (A < 0 ? 0 : 1 << A) + (B < 0 ? 0 : 1 << B) - (D < 0 ? 0 : 1 << D) - (E < 0 ? 0 : 1 << E);
  localparam logic [K:0] P = {1'b1, {K{1'b0}}} - ((K + 1)'(C) << S) + 1'b1;
  localparam int WT = S + 7;      // the second fold's upper part
  localparam int W1 = K + WT;

  // First fold: hi C 2^S + lo - hi.
  logic [K+6:0] hi_c;
  times_c #(.W(K), .A(A), .B(B), .D(D), .E(E)) u_first (.clk, .x(x[2*K-1:K]), .y(hi_c));
  logic [K:0] rest1, rest2;  // two's complement
  logic [W1-1:0] once;
  always_ff @(posedge clk) begin
    rest1 <= {1'b0, x[K-1:0]} - {1'b0, x[2*K-1:K]};
    rest2 <= rest1;
    once  <= (W1'(hi_c) << S) + {{(W1 - K - 1) {rest2[K]}}, rest2};
  end

  // Second fold, of what is left above bit K.
  logic [WT+6:0] top_c;
  times_c #(.W(WT), .A(A), .B(B), .D(D), .E(E)) u_second (.clk, .x(once[W1-1:K]), .y(top_c));
  logic [K:0] tail1, tail2;  // may be negative
  logic [K:0] twice, less, kept;
  always_ff @(posedge clk) begin
    tail1 <= {1'b0, once[K-1:0]} - (K + 1)'(once[W1-1:K]);
    tail2 <= tail1;
    twice <= ((K + 1)'(top_c) << S) + tail2;
  end

  always_comb less = twice - P;
  always_ff @(posedge clk) kept <= less[K] ? twice : less;
  assign r = kept[K-1:0];
endmodule
