// The last register before a stream leaves: what is on offer stays until it is taken, whatever happens behind it.
//
// `abort` drops what has not been offered yet; a packet that was begun is ended by an empty beat with `user` and
// `last`, so that nobody waits for its end: before anything else goes out, however late its last beat is taken. `late`
// says that what is on offer was there before an abort, or is such an end: it is not of the command that runs now.
module stream_out (
`ifdef FORMAL
    output logic         formal_begun,  // what formal/streams.sv says of the inside
    output logic         formal_broken,
`endif
    input  logic         clk,
    input  logic         rst,
    input  logic         abort,
    input  logic         in_valid,
    output logic         in_ready,
    input  logic         in_last,
    input  logic [15:0]  in_keep,
    input  logic [127:0] in_data,
    output logic         out_valid,
    input  logic         out_ready,
    output logic         out_last,
    output logic         out_user,
    output logic         out_late,
    output logic [15:0]  out_keep,
    output logic [127:0] out_data
);
  logic begun;   // a packet has been begun, with what is on offer
  logic broken;  // and an abort came meanwhile: its end is still to come
`ifdef FORMAL
  assign formal_begun = begun;
  assign formal_broken = broken;
`endif
  assign in_ready = !abort && !broken && (!out_valid || out_ready);
  always_ff @(posedge clk) begin
    if (rst) begin
      out_valid <= 1'b0;
      out_last <= 1'b0;
      out_user <= 1'b0;
      out_late <= 1'b0;
      out_keep <= '0;
      out_data <= '0;
      begun <= 1'b0;
      broken <= 1'b0;
    end else if (!out_valid || out_ready) begin
      out_valid <= 1'b0;
      out_data <= '0;
      out_user <= 1'b0;
      out_late <= 1'b0;
      if ((abort || broken) && begun) begin
        out_valid <= 1'b1;
        out_last <= 1'b1;
        out_user <= 1'b1;
        out_late <= 1'b1;
        out_keep <= '0;
        begun <= 1'b0;
        broken <= 1'b0;
      end else if (in_valid && in_ready) begin
        out_valid <= 1'b1;
        out_last <= in_last;
        out_keep <= in_keep;
        out_data <= in_data;
        begun <= !in_last;
      end
    end else if (abort) begin
      out_late <= 1'b1;
      broken <= begun;
    end
  end
endmodule
