// modmul.sv with p = 251 = 2^8 - 3 * 2 + 1 against the remainder operator, for all a and b below p: the same
// source, with partial products of 4 by 2 bits. At full width a multiplier is beyond
// solvers; tests try it there. Not finished yet: proofs.py says so.
module modmul_small (
    input logic       clk,
    input logic [7:0] a,
    input logic [7:0] b
);
  localparam int P = 251;
  logic [7:0] r;
  modmul #(.K(8), .S(1), .A(1), .B(1), .D(0), .E(-1), .CA(4), .CB(2)) u_modmul (.clk, .a, .b, .r);

  logic [7:0] held_a, held_b;
  logic [3:0] age = 0;
  always_ff @(posedge clk) begin
    if (age == 0) begin
      held_a <= a;
      held_b <= b;
    end
    if (age != 15) age <= age + 1'b1;
    assume (a < P && b < P);
    assume (age == 0 || (a == held_a && b == held_b));
    if (age >= 13) assert (16'(r) == (16'(held_a) * 16'(held_b)) % 16'(P));
  end
endmodule
