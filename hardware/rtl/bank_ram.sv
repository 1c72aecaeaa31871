// A memory with one port to read and one to write, each every cycle. A read takes 2 cycles; what is read in the cycle
// in which it is written is what was there before, and nobody relies on it.
module bank_ram #(
    parameter int W = 53,
    parameter int DEPTH = 512
) (
    input  logic                     clk,
    input  logic                     we,
    input  logic [$clog2(DEPTH)-1:0] waddr,
    input  logic [W-1:0]             wdata,
    input  logic [$clog2(DEPTH)-1:0] raddr,
    output logic [W-1:0]             rdata
);
  /*verilator no_inline_module*/  // one function for all of them, not one each
  (* ram_style = "block", no_rw_check *) logic [W-1:0] mem[DEPTH];
  logic [W-1:0] first;
  always_ff @(posedge clk) begin
    if (we) mem[waddr] <= wdata;
    first <= mem[raddr];
    rdata <= first;
  end
endmodule
