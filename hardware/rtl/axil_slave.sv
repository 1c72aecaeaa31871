// AXI4-Lite to one write or read at a time: `write` and `read` last one cycle, in which `refuse` answers (SLVERR).
// `hold` keeps a write waiting. Whole words only: a write with another strobe is refused without being seen.
module axil_slave #(
    parameter int ADDR = 8
) (
    input  logic            clk,
    input  logic            rst,
    input  logic            awvalid,
    output logic            awready,
    input  logic [ADDR-1:0] awaddr,
    input  logic            wvalid,
    output logic            wready,
    input  logic [31:0]     wdata,
    input  logic [3:0]      wstrb,
    output logic            bvalid,
    input  logic            bready,
    output logic [1:0]      bresp,
    input  logic            arvalid,
    output logic            arready,
    input  logic [ADDR-1:0] araddr,
    output logic            rvalid,
    input  logic            rready,
    output logic [31:0]     rdata,
    output logic [1:0]      rresp,
    input  logic            hold,
    output logic            write,
    output logic [ADDR-1:0] write_addr,
    output logic [31:0]     write_data,
    input  logic            write_refuse,
    output logic            read,
    output logic [ADDR-1:0] read_addr,
    input  logic [31:0]     read_data,
    input  logic            read_refuse
);
  localparam logic [1:0] OKAY = 2'b00, SLVERR = 2'b10;
  logic taken, whole;
  assign taken = awvalid && wvalid && !bvalid && !hold && !rst;
  assign whole = wstrb == 4'hf && awaddr[1:0] == 0;
  assign awready = taken;
  assign wready = taken;
  assign write = taken && whole;
  assign write_addr = awaddr;
  assign write_data = wdata;
  assign arready = !rvalid && !rst;
  assign read = arvalid && arready;
  assign read_addr = araddr;
  always_ff @(posedge clk) begin
    if (rst) begin
      bvalid <= 1'b0;
      bresp <= OKAY;
      rvalid <= 1'b0;
      rresp <= OKAY;
      rdata <= '0;
    end else begin
      if (taken) begin
        bvalid <= 1'b1;
        bresp <= whole && !write_refuse ? OKAY : SLVERR;
      end else if (bready) begin
        bvalid <= 1'b0;
      end
      if (read) begin
        rvalid <= 1'b1;
        rresp <= read_refuse ? SLVERR : OKAY;
        rdata <= read_refuse ? '0 : read_data;
      end else if (rready) begin
        rvalid <= 1'b0;
        rdata <= '0;
      end
    end
  end
endmodule
