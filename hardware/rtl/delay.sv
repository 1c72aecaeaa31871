// d, LATENCY cycles later. No reset: what passes is overwritten by what follows.
module delay #(
    parameter int W = 1,
    parameter int LATENCY = 1
) (
    input  logic         clk,
    input  logic [W-1:0] d,
    output logic [W-1:0] q
);
  if (LATENCY == 0) begin : g_none
    assign q = d;
  end else begin : g_some
    logic [W-1:0] line[LATENCY];
    always_ff @(posedge clk) begin
      line[0] <= d;
      for (int i = 1; i < LATENCY; i++) line[i] <= line[i-1];
    end
    assign q = line[LATENCY-1];
  end
endmodule
