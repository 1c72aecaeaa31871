// The memories, for a proof: what is read is anything. Of a bank_ram's lines there is one, any one, and of that how often
// in a row zeros have been written over it.
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
  (* anyconst *) logic [$clog2(DEPTH)-1:0] line;
  (* anyseq *) logic [W-1:0] anything;
  logic [1:0] zeros;
  assign rdata = anything;
  always_ff @(posedge clk) begin
    if (we && waddr == line) zeros <= wdata != 0 ? 2'd0 : zeros + 2'(zeros < 2);
  end
endmodule

module twiddle_rom #(
    parameter int LOG_N = 12,
    parameter int LOG_P = 3,
    parameter int LIMB = 0,
    parameter int LANE = 0
) (
    input  logic                   clk,
    input  logic                   early,
    input  logic [3:0]             stage,
    input  logic [LOG_N-LOG_P-1:0] addr,
    output logic [52:0]            w
);
  (* anyseq *) logic [52:0] anything;
  assign w = anything;
endmodule
