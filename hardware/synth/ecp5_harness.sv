// fc_top on an ECP5's few pins, for place and route: registers around every port, shifted in and out a bit a cycle.
// What the tool reports of paths is between registers, so it is the accelerator's. Not for use.
module ecp5_harness (
    input  logic clk,
    input  logic rst_n,
    input  logic shift_in,
    input  logic capture,
    output logic shift_out
);
  localparam int INPUTS = 455;
  localparam int OUTPUTS = 323;
  logic [INPUTS-1:0] in;
  logic [OUTPUTS-1:0] out, kept;
  always_ff @(posedge clk) begin
    in <= {in[INPUTS-2:0], shift_in};
    kept <= capture ? out : {1'b0, kept[OUTPUTS-1:1]};
    shift_out <= kept[0];
  end

  fc_top #(.LOG_P(1), .CA(18), .CB(18)) u_top (
      .clk, .rst_n,
      .s_axil_awaddr(in[7:0]), .s_axil_awprot(in[10:8]), .s_axil_awvalid(in[11]), .s_axil_wvalid(in[12]),
      .s_axil_wdata(in[44:13]), .s_axil_wstrb(in[48:45]), .s_axil_bready(in[49]), .s_axil_arvalid(in[50]),
      .s_axil_araddr(in[58:51]), .s_axil_arprot(in[61:59]), .s_axil_rready(in[62]),
      .s_a_tdata(in[190:63]), .s_a_tvalid(in[191]), .s_a_tlast(in[192]),
      .s_b_tdata(in[320:193]), .s_b_tvalid(in[321]), .s_b_tlast(in[322]),
      .s_mask_tdata(in[450:323]), .s_mask_tvalid(in[451]), .s_mask_tlast(in[452]),
      .m_mask_tready(in[453]), .m_out_tready(in[454]),
      .s_axil_awready(out[0]), .s_axil_wready(out[1]), .s_axil_bvalid(out[2]), .s_axil_bresp(out[4:3]),
      .s_axil_arready(out[5]), .s_axil_rvalid(out[6]), .s_axil_rdata(out[38:7]), .s_axil_rresp(out[40:39]),
      .s_a_tready(out[41]), .s_b_tready(out[42]), .s_mask_tready(out[43]),
      .m_mask_tvalid(out[44]), .m_mask_tlast(out[45]), .m_mask_tdata(out[173:46]), .mask_flush(out[174]),
      .m_out_tvalid(out[175]), .m_out_tlast(out[176]), .m_out_tuser(out[177]), .m_out_tkeep(out[193:178]),
      .m_out_tdata(out[321:194]), .irq(out[322]));
endmodule
