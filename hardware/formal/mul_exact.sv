// mul_pipe.sv against the multiplication operator, for all a and b: eight bits each, in partial products of 3 by 2 bits,
// so that there are three columns and four rows as at full width. That multiplier is beyond solvers; tests try it.
// Registers are wires here (through.v).
module mul_exact (
    input logic       clk,
    input logic [7:0] a,
    input logic [7:0] b
);
  logic [15:0] p;
  mul_pipe #(.WA(8), .WB(8), .CA(3), .CB(2)) u_mul (.clk, .a, .b, .p);
  always_comb assert (p == 16'(a) * 16'(b));
endmodule
