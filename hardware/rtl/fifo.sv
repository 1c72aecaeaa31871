// First word falls through. `room` says that SLACK more words fit, for writers who notice late. `flush` empties it and
// writes zeros over what it held, one word a cycle: hold it DEPTH cycles.
module fifo #(
    parameter int W = 128,
    parameter int DEPTH = 16,
    parameter int SLACK = 1
) (
    input  logic         clk,
    input  logic         flush,
    input  logic         in_valid,
    input  logic [W-1:0] in_data,
    output logic         room,
    output logic         out_valid,
    output logic [W-1:0] out_data,
    input  logic         out_ready
);
  localparam int A = $clog2(DEPTH);
  (* ram_style = "distributed" *) logic [W-1:0] mem[DEPTH];
  logic [A-1:0] head, tail;
  logic [A:0] count;
  logic pop;
  assign pop = out_valid && out_ready;
  assign out_data = mem[head];
  always_ff @(posedge clk) begin
    if (in_valid || flush) begin
      mem[tail] <= flush ? '0 : in_data;
      tail <= tail + 1'b1;
    end
    if (flush) begin
      count <= '0;
      head <= tail + 1'b1;
    end else begin
      count <= count + (A + 1)'(in_valid) - (A + 1)'(pop);
      if (pop) head <= head + 1'b1;
    end
    out_valid <= !flush && (in_valid || count > 1 || (out_valid && !pop));  // count != 0
    room <= !flush && count <= (A + 1)'(DEPTH - SLACK);
  end
endmodule
