// x times C = 2^A + 2^B - 2^D - 2^E, a term with shift -1 left out. Latency 2 cycles. C must be positive.
module times_c #(
    parameter int W = 53,
    parameter int A = 5,
    parameter int B = 3,
    parameter int D = 1,
    parameter int E = -1
) (
    input  logic         clk,
    input  logic [W-1:0] x,
    output logic [W+6:0] y
);
  localparam int WY = W + 7;

  logic [WY-1:0] plus, minus;
  always_ff @(posedge clk) begin
    plus  <= (A < 0 ? '0 : WY'(x) << A) + (B < 0 ? '0 : WY'(x) << B);
    minus <= (D < 0 ? '0 : WY'(x) << D) + (E < 0 ? '0 : WY'(x) << E);
    y     <= plus - minus;
  end
endmodule
