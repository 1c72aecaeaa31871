// Registers as wires: a pipeline without feedback becomes the function that it computes, and a proof takes one step.
(* techmap_celltype = "$dff" *)
module through (CLK, D, Q);
  parameter WIDTH = 1;
  parameter CLK_POLARITY = 1'b1;
  input CLK;
  input [WIDTH-1:0] D;
  output [WIDTH-1:0] Q;
  assign Q = D;
endmodule
