// For every step of every pass: the lines that are read lie in different banks, so do those that are written, each at
// the address where its line is kept; and no two steps of a pass touch the same word. All of the address space.
module bank_conflicts #(
    parameter int LINE_BITS = 9
) (
    input logic [1:0]           op,
    input logic [LINE_BITS-1:0] c,
    input logic [LINE_BITS-1:0] other
);
  localparam int TOP = LINE_BITS - 1;
  logic [LINE_BITS-2:0] r0, r1, w0, w1, or0, or1, ow0, ow1;
  logic r_swap, w_swap, or_swap, ow_swap;
  ntt_address #(.LINE_BITS(LINE_BITS)) u_one (.op, .c, .r0, .r1, .r_swap, .w0, .w1, .w_swap);
  ntt_address #(.LINE_BITS(LINE_BITS)) u_other (
      .op, .c(other), .r0(or0), .r1(or1), .r_swap(or_swap), .w0(ow0), .w1(ow1), .w_swap(ow_swap));

  // What a step reads and writes, said without the address generator.
  localparam logic [LINE_BITS-1:0] H = 1 << TOP;
  logic [LINE_BITS-1:0] read_first, read_second, write_first, write_second;
  logic alone;
  always_comb begin
    alone = op == 2'd2 || op == 2'd3;
    read_first = op == 2'd1 ? c << 1 : c;
    read_second = op == 2'd1 ? (c << 1) + 1'b1 : c + H;
    write_first = op == 2'd0 ? c << 1 : c;
    write_second = op == 2'd0 ? (c << 1) + 1'b1 : c + H;
  end
  // Where a line is kept: the only place that says so beside ntt_control's loading and leaving.
  function automatic logic bank(input logic [LINE_BITS-1:0] line);
    bank = line[0] ^ line[TOP];
  endfunction

  always_comb begin
    assume (alone || (c < H && other < H));
    // Different banks, and the one that `swap` says; the right addresses there.
    assert (bank(read_first) == r_swap);
    assert ((r_swap ? r1 : r0) == read_first[TOP:1]);
    assert (bank(write_first) == w_swap);
    assert ((w_swap ? w1 : w0) == write_first[TOP:1]);
    if (!alone) begin
      assert (bank(read_first) != bank(read_second));
      assert ((r_swap ? r0 : r1) == read_second[TOP:1]);
      assert (bank(write_first) != bank(write_second));
      assert ((w_swap ? w0 : w1) == write_second[TOP:1]);
    end
    // Another step is elsewhere, in both banks or in the one that counts.
    if (c != other) begin
      if (!alone) assert (r0 != or0 && r1 != or1 && w0 != ow0 && w1 != ow1);
      else assert (r_swap != or_swap || (r_swap ? r1 != or1 : r0 != or0));
    end
  end
endmodule
