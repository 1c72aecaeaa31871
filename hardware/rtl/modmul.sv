// a b mod p for a, b < p = 2^K - C 2^S + 1; only the product takes DSPs.
//
// Latency 12 cycles (fc_pkg::MODMUL_LATENCY), one product a cycle.
module modmul #(
    parameter int K = 53,
    parameter int S = 13,
    parameter int A = 5,
    parameter int B = 3,
    parameter int D = 1,
    parameter int E = -1,
    parameter int CA = 26,
    parameter int CB = 17
) (
    input  logic         clk,
    input  logic [K-1:0] a,
    input  logic [K-1:0] b,
    output logic [K-1:0] r
);
  logic [2*K-1:0] product;
  mul_pipe #(.WA(K), .WB(K), .CA(CA), .CB(CB)) u_mul (.clk, .a, .b, .p(product));
  fold #(.K(K), .S(S), .A(A), .B(B), .D(D), .E(E)) u_fold (.clk, .x(product), .r);
endmodule
