// What leaves by stream_out: offered until taken (AXI4-Stream), nothing lost, doubled or out of order under any
// pauses and aborts; and after an abort a packet that was begun is ended. From any state that can be reached, by
// induction.
module streams (
    input logic         clk,
    input logic         rst,
    input logic         abort,
    input logic         in_valid,
    input logic         in_last,
    input logic [15:0]  in_keep,
    input logic [127:0] in_data,
    input logic         out_ready
);
  logic in_ready, out_valid, out_last, out_user, out_late, formal_begun, formal_broken;
  logic [15:0] out_keep;
  logic [127:0] out_data;
  stream_out u_out (.*);

  logic past = 0;
  logic [127:0] kept;
  logic [15:0] kept_keep;
  logic offered = 0, kept_last, owed = 0;  // what was taken in and has not left
  logic ours = 0;                // a packet of ours is open towards the reader
  logic late = 0, due = 0;       // there since before an abort; an abort came within a packet
  always_ff @(posedge clk) begin
    past <= 1;
    if (!past) assume (rst);
    offered <= out_valid && !out_ready && !rst;
    kept <= out_data;
    kept_keep <= out_keep;
    kept_last <= out_last;
    if (past && offered) begin
      assert (out_valid && out_data == kept && out_keep == kept_keep && out_last == kept_last);
    end
    // One word in, the same word out, next.
    if (rst) owed <= 0;
    else if (in_valid && in_ready) owed <= 1;
    else if (out_valid && out_ready) owed <= 0;
    if (past) assert (!owed || out_valid);
    if (past && out_valid) assert (owed || out_user);
    // A word that an abort makes is empty and a last one, and only within a packet.
    if (past && out_valid && out_user) assert (out_last && out_data == 0 && out_keep == 0);
    if (rst) ours <= 0;
    else if (out_valid && out_ready) ours <= !out_last;
    if (past && out_valid && out_user) assert (ours);
    // `begun` is what the reader will think once it has taken what is on offer.
    if (past) assert (formal_begun == (out_valid ? !out_last : ours));
    if (past) assert (out_valid || !owed);
    // What was on offer when an abort came, or ends a packet for one, says so until it is taken.
    late <= !rst && abort && out_valid && !out_ready || late && out_valid && !out_ready && !rst;
    if (past && out_valid) assert (out_late == (late || out_user));
    // Nothing of another packet before that end, however late it comes.
    due <= !rst && (abort && formal_begun || due && !(out_valid && out_user));
    if (past && due && !(out_valid && out_user)) assert (formal_broken && formal_begun);
    if (past && formal_broken) assert (formal_begun && due);
    if (past && in_valid && in_ready) assert (!due || (out_valid && out_user));
  end
  logic [127:0] last_in;
  logic [15:0] last_keep;
  logic last_last;
  always_ff @(posedge clk) begin
    if (in_valid && in_ready) begin
      last_in <= in_data;
      last_keep <= in_keep;
      last_last <= in_last;
    end
    if (past && owed && !out_user) assert (out_data == last_in && out_keep == last_keep && out_last == last_last);
    if (past && out_user && out_valid) assert (!owed);
  end
endmodule
