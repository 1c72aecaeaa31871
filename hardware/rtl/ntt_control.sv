// The order of passes: forward, product with the key, inverse; or forward and copy, which makes the key.
//
// N/P log2(N)/2 cycles a transform and N/P a product, back to back: a pass begins when the last of the one before has
// been read, not written, because what it reads first has been written by then (H/2 > NTT_LATENCY, checked below).
// A polynomial takes N/P (log2 N + 1) cycles. `in_full` says that one lies in the io memory's lower half; `in_taken`
// that it has been read. The last stage writes lines behind those that leave: a step waits until those that it writes
// have been asked for, or `out_read` says that all have. `out_done`: its result lies in the upper half. Also here: who
// has the io memory's ports. The transform comes first.
module ntt_control
#(
    parameter int LOG_N = 12,
    parameter int LOG_P = 3,
    localparam int LB = LOG_N - LOG_P
) (
    input  logic          clk,
    input  logic          rst,
    input  logic          wipe,      // all memories; `wipe_key` spares or takes the key's
    input  logic          wipe_key,
    input  logic [LB-1:0] wipe_line,
    input  logic          to_key,
    input  logic          in_full,
    output logic          in_taken,
    input  logic          out_read,
    output logic          out_done,
    output logic          key_done,
    output logic          idle,
    output logic          moving,    // a step was made
    // Line `load_line` of the lower half: written when `load_grant` answers.
    input  logic          load_want,
    input  logic [LB-1:0] load_line,
    output logic          load_grant,
    // Line `read_line` of the upper half: its data comes 3 cycles after `read_grant`, from bank `read_bank` then.
    input  logic          read_want,
    input  logic [LB-1:0] read_line,
    output logic          read_grant,
    output logic          read_hold,
    output logic          read_bank,
    // To the limbs: see ntt_limb.
    output logic [1:0]    op,
    output logic          from_io,
    output logic          r_swap,
    output logic [LB-1:0] io_r0,
    output logic [LB-1:0] io_r1,
    output logic [LB-1:0] work_r0,
    output logic [LB-1:0] work_r1,
    output logic [LB-1:0] key_r,
    output logic          early,
    output logic [3:0]    stage,
    output logic [LB-1:0] twiddle,
    output logic [1:0]    w_op,
    output logic          w_swap,
    output logic          load,
    output logic          w_wipe,
    output logic [1:0]    io_we,
    output logic [LB-1:0] io_w0,
    output logic [LB-1:0] io_w1,
    output logic [1:0]    work_we,
    output logic [LB-1:0] work_w0,
    output logic [LB-1:0] work_w1,
    output logic          key_we,
    output logic [LB-1:0] key_w
);
  localparam int H = 1 << (LB - 1);
  if (H / 2 <= fc_pkg::NTT_LATENCY) begin : g_too_small
    $error("N / 4P must exceed fc_pkg::NTT_LATENCY: a pass would read what has not been written yet");
  end

  // ---- what to read next
  logic running, half;  // `half` of the work memory holds what the next pass reads
  logic [1:0] pass;
  logic [3:0] s;
  logic [LB-1:0] c;
  logic alone, first, last, step_ends, issue, waits, room;
  always_comb begin
    alone = pass == fc_pkg::OP_PRODUCT || pass == fc_pkg::OP_COPY;
    first = pass == fc_pkg::OP_FORWARD && s == 0;
    last = pass == fc_pkg::OP_INVERSE && s == 0;
    waits = (first && !in_full) || (last && !room);
    issue = running && !waits;
    step_ends = issue && c == (alone ? LB'(2 * H - 1) : LB'(H - 1));
  end
  assign idle = !running;
  // Step c of the last stage writes lines c and c + H. Known a cycle late, when c may be one more.
  always_ff @(posedge clk) begin
    room <= out_read || {1'b0, read_line} >= {1'b0, c} + (LB + 1)'(H + 2);
    moving <= issue;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      running <= 1'b0;
      half <= 1'b0;
      pass <= fc_pkg::OP_FORWARD;
      s <= '0;
      c <= '0;
    end else if (!running) begin
      running <= in_full;
      pass <= fc_pkg::OP_FORWARD;
      s <= '0;
      c <= '0;
      half <= 1'b1;  // the first pass reads io and writes half 0
    end else if (step_ends) begin
      c <= '0;
      half <= !half;
      unique case (pass)
        fc_pkg::OP_FORWARD:
        if (s == 4'(LOG_N - 1)) pass <= to_key ? fc_pkg::OP_COPY : fc_pkg::OP_PRODUCT;
        else s <= s + 1'b1;
        fc_pkg::OP_PRODUCT: pass <= fc_pkg::OP_INVERSE;  // s is that of the last stage already
        fc_pkg::OP_INVERSE:
        if (s == 0) running <= 1'b0;
        else s <= s - 1'b1;
        default: running <= 1'b0;
      endcase
    end else if (issue) begin
      c <= c + 1'b1;
    end
  end
  assign in_taken = step_ends && first;

  // ---- the cycle of the read
  logic [LB-2:0] r0, r1, w0, w1;
  logic r_swap_next, w_swap_next;
  ntt_address #(.LINE_BITS(LB)) u_address (
      .op(pass), .c, .r0, .r1, .r_swap(r_swap_next), .w0, .w1, .w_swap(w_swap_next));

  // 2^(s - log2 P) + c mod 2^(s - log2 P), or the mirrored word.
  logic [LB-1:0] one, below, turn;
  always_comb begin
    for (int k = 0; k < LB; k++) begin
      one[k] = s == 4'(k + LOG_P);
      below[k] = s > 4'(k + LOG_P);
    end
    turn = pass == fc_pkg::OP_INVERSE ? ~c : c;
  end

  logic io_taken;  // by the transform
  assign io_taken = issue && first;
  assign read_grant = read_want && !io_taken;

  logic [2*(LB-1)+LB+8-1:0] after, before_write;
  logic to_io, to_work, key_store;
  always_ff @(posedge clk) begin
    op <= pass;
    from_io <= first;
    r_swap <= r_swap_next;
    io_r0 <= io_taken ? {1'b0, r0} : {1'b1, read_line[LB-1:1]};
    io_r1 <= io_taken ? {1'b0, r1} : {1'b1, read_line[LB-1:1]};
    work_r0 <= {half, r0};
    work_r1 <= {half, r1};
    key_r <= c;
    early <= s < 4'(LOG_P);
    stage <= s;
    twiddle <= one | (turn & below);
  end
  always_comb begin
    to_io = issue && last;
    key_store = issue && pass == fc_pkg::OP_COPY;
    to_work = issue && !last && pass != fc_pkg::OP_COPY;
  end
  // A work pass writes the half it does not read; the first pass reads io and writes half 0.
  always_ff @(posedge clk)
    after <= {pass, to_io, to_work, key_store, w_swap_next, !half, step_ends && (last || pass == fc_pkg::OP_COPY), c, w0, w1};

  delay #(.W(2), .LATENCY(3)) u_read (
      .clk, .d({read_grant, read_line[0] ^ read_line[LB-1]}), .q({read_hold, read_bank}));

  // ---- the cycle before the write
  delay #(.W($bits(after)), .LATENCY(fc_pkg::NTT_LATENCY - 1)) u_after (.clk, .d(after), .q(before_write));
  logic b_io, b_work, b_key, b_half, b_ends;
  logic [LB-1:0] b_c;
  logic [LB-2:0] b_w0, b_w1;
  assign {w_op, b_io, b_work, b_key, w_swap, b_half, b_ends, b_c, b_w0, b_w1} = before_write;
  logic b_alone;
  logic [1:0] b_banks, load_banks;
  always_comb begin
    b_alone = w_op == fc_pkg::OP_PRODUCT || w_op == fc_pkg::OP_COPY;
    b_banks = b_alone ? (w_swap ? 2'b10 : 2'b01) : 2'b11;
    load_banks = load_line[0] ^ load_line[LB-1] ? 2'b10 : 2'b01;
    load_grant = load_want && !b_io;
    load = load_grant;
    w_wipe = wipe;
  end

  // ---- the cycle of the write
  always_ff @(posedge clk) begin
    io_we <= wipe ? 2'b11 : b_io ? b_banks : load_grant ? load_banks : 2'b00;
    io_w0 <= wipe ? wipe_line : b_io ? {1'b1, b_w0} : {1'b0, load_line[LB-1:1]};
    io_w1 <= wipe ? wipe_line : b_io ? {1'b1, b_w1} : {1'b0, load_line[LB-1:1]};
    work_we <= wipe ? 2'b11 : b_work ? b_banks : 2'b00;
    work_w0 <= wipe ? wipe_line : {b_half, b_w0};
    work_w1 <= wipe ? wipe_line : {b_half, b_w1};
    key_we <= wipe ? wipe_key : b_key;
    key_w <= wipe ? wipe_line : b_c;
    out_done <= !rst && b_ends && b_io;
    key_done <= !rst && b_ends && b_key;
  end
endmodule
