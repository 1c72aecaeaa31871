// A wipe, on command or by reset, whatever the device was doing: when the next command can begin, zeros have been written
// twice in a row over every line of both banks of io and work memory and, unless the device says that it has a key, of the
// key's. fc_top as it is, but for datapaths and FIFOs: what comes out of those is anything. By induction.
module wiped #(
    parameter int LOG_P = 3
) (
    input logic clk,
    input logic rst_n
);
  localparam int LB = 12 - LOG_P;
  localparam int LINES = 1 << LB;
  fc_top #(.LOG_P(LOG_P)) u_top (.clk, .rst_n);  // other inputs: anything

  // What is inside is joined by name when the hierarchy is flattened.
  (* hierconn *) logic \u_top.rst , \u_top.wipe ;
  (* hierconn *) logic \u_top.u_controller.key_there , \u_top.u_controller.wipe_all , \u_top.u_controller.accepted ;
  (* hierconn *) logic [2:0] \u_top.u_controller.which ;
  (* hierconn *) logic [LB+1:0] \u_top.u_controller.wipe_count ;
  (* hierconn *) logic [1:0] \u_top.u_limb0.u_io0.zeros , \u_top.u_limb0.u_io1.zeros , \u_top.u_limb0.u_work0.zeros ,
      \u_top.u_limb0.u_work1.zeros , \u_top.u_limb0.u_key.zeros , \u_top.u_limb1.u_io0.zeros ,
      \u_top.u_limb1.u_io1.zeros , \u_top.u_limb1.u_work0.zeros , \u_top.u_limb1.u_work1.zeros ,
      \u_top.u_limb1.u_key.zeros ;
  (* hierconn *) logic [LB-1:0] \u_top.u_limb0.u_io0.line , \u_top.u_limb0.u_io1.line , \u_top.u_limb0.u_work0.line ,
      \u_top.u_limb0.u_work1.line , \u_top.u_limb0.u_key.line , \u_top.u_limb1.u_io0.line ,
      \u_top.u_limb1.u_io1.line , \u_top.u_limb1.u_work0.line , \u_top.u_limb1.u_work1.line ,
      \u_top.u_limb1.u_key.line ;
  logic [2*10-1:0] zeros;
  logic [LB*10-1:0] line;
  assign zeros = {
      \u_top.u_limb1.u_key.zeros , \u_top.u_limb1.u_work1.zeros , \u_top.u_limb1.u_work0.zeros ,
      \u_top.u_limb1.u_io1.zeros , \u_top.u_limb1.u_io0.zeros , \u_top.u_limb0.u_key.zeros ,
      \u_top.u_limb0.u_work1.zeros , \u_top.u_limb0.u_work0.zeros , \u_top.u_limb0.u_io1.zeros ,
      \u_top.u_limb0.u_io0.zeros };
  assign line = {
      \u_top.u_limb1.u_key.line , \u_top.u_limb1.u_work1.line , \u_top.u_limb1.u_work0.line ,
      \u_top.u_limb1.u_io1.line , \u_top.u_limb1.u_io0.line , \u_top.u_limb0.u_key.line ,
      \u_top.u_limb0.u_work1.line , \u_top.u_limb0.u_work0.line , \u_top.u_limb0.u_io1.line ,
      \u_top.u_limb0.u_io0.line };

  // A reset comes first: it takes a cycle to be seen.
  logic [1:0] age = 0;
  logic wipe1 = 0, wipe2 = 0, wipe3 = 0, key1, key2;
  always_ff @(posedge clk) begin
    if (age != 3) age <= age + 1'b1;
    wipe1 <= \u_top.wipe && age >= 2;
    wipe2 <= wipe1;
    wipe3 <= wipe2;
    key1 <= \u_top.u_controller.key_there ;
    key2 <= key1;
  end
  always_comb begin
    if (age == 0) assume (!rst_n);
    if (age == 1) assert (\u_top.rst );
    if (age >= 2) begin
      if (\u_top.wipe ) begin
        // Nothing but another wipe can begin.
        assert (!\u_top.u_controller.accepted || \u_top.u_controller.which == 5 || \u_top.u_controller.which == 6);
        assert (\u_top.u_controller.wipe_all || \u_top.u_controller.key_there );
      end
      for (int m = 0; m < 10; m++) begin
        // How far it has come: a line is written two cycles after its turn, and has been one later.
        if (\u_top.wipe && (m % 5 != 4 || \u_top.u_controller.wipe_all )) begin
          if (32'(\u_top.u_controller.wipe_count ) >= 32'(line[m*LB+:LB]) + 3) assert (zeros[2*m+:2] >= 1);
          if (32'(\u_top.u_controller.wipe_count ) >= 32'(line[m*LB+:LB]) + 3 + LINES) assert (zeros[2*m+:2] >= 2);
        end
        // What it is for, in the first cycle in which a command may run; whether a key was there before that.
        if (wipe3 && !wipe2 && !wipe1 && !\u_top.wipe && (m % 5 != 4 || !key2)) assert (zeros[2*m+:2] >= 2);
      end
    end
  end
endmodule
