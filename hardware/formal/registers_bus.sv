// AXI4-Lite: an answer to every access, one each, which stays until it is taken; a refused read carries no data.
module registers_bus (
    input logic        clk,
    input logic        rst,
    input logic        awvalid,
    input logic [7:0]  awaddr,
    input logic        wvalid,
    input logic [31:0] wdata,
    input logic [3:0]  wstrb,
    input logic        bready,
    input logic        arvalid,
    input logic [7:0]  araddr,
    input logic        rready,
    input logic        hold,
    input logic        write_refuse,
    input logic [31:0] read_data,
    input logic        read_refuse
);
  logic awready, wready, bvalid, arready, rvalid, write, read;
  logic [1:0] bresp, rresp;
  logic [7:0] write_addr, read_addr;
  logic [31:0] rdata, write_data;
  axil_slave #(.ADDR(8)) u_axil (.*);

  logic past = 0, b_waits = 0, r_waits = 0, was_taken = 0, was_read = 0, was_refused = 0;
  logic [1:0] b_kept, r_kept;
  logic [31:0] r_data;
  always_ff @(posedge clk) begin
    past <= 1;
    if (!past) assume (rst);
    // The two halves of a write are taken together, and never a second before the first has its answer.
    assert (awready == wready);
    if (awready) assert (awvalid && wvalid && !bvalid);
    if (write) assert (awready && wstrb == 4'hf && awaddr[1:0] == 0);
    if (read) assert (arvalid && arready && !rvalid);
    was_taken <= awready && !rst;
    was_read <= read && !rst;
    was_refused <= read_refuse;
    if (past && was_taken) assert (bvalid);
    if (past && was_read) assert (rvalid);
    if (past && was_read && was_refused) assert (rdata == 0 && rresp == 2'b10);
    b_waits <= bvalid && !bready && !rst;
    r_waits <= rvalid && !rready && !rst;
    b_kept <= bresp;
    r_kept <= rresp;
    r_data <= rdata;
    if (past && b_waits) assert (bvalid && bresp == b_kept);
    if (past && r_waits) assert (rvalid && rresp == r_kept && rdata == r_data);
    if (past && !rvalid) assert (rdata == 0);
  end
endmodule
