// The accelerator: AXI4-Lite registers, AXI4-Stream data of 128 bits, all in one clock.
//
//   s_a    polynomials a, a coefficient a beat: residue 0 in bits 52..0, residue 1 in bits 116..64, the rest zero
//   s_b    PREPARE: e, 16 signed bytes a beat; ENCRYPT: plaintexts, one a beat; DECRYPT: c0, FORMAT.wire_bits each
//   m_mask, s_mask   masks a s + e to and from the memory beside the device, one a beat, in order; `mask_flush`: forget
//   m_out  ENCRYPT: c0, wire_bits each; DECRYPT: a coefficient a beat (decryptor.sv)
//
// A packet (TLAST) is one polynomial or one ciphertext. Preparation and decryption take N/P (log2 N + 1) cycles a
// ciphertext while the next one arrives and the last one leaves; encryption a cycle a coefficient.
module fc_top
#(
    parameter int LOG_N = 12,
    parameter int LOG_P = 3,
    parameter int SLOTS = 4096,
    parameter int CA = 26,
    parameter int CB = 17
) (
    input  logic         clk,
    input  logic         rst_n,
    input  logic         s_axil_awvalid,
    output logic         s_axil_awready,
    input  logic [7:0]   s_axil_awaddr,
    input  logic [2:0]   s_axil_awprot,
    input  logic         s_axil_wvalid,
    output logic         s_axil_wready,
    input  logic [31:0]  s_axil_wdata,
    input  logic [3:0]   s_axil_wstrb,
    output logic         s_axil_bvalid,
    input  logic         s_axil_bready,
    output logic [1:0]   s_axil_bresp,
    input  logic         s_axil_arvalid,
    output logic         s_axil_arready,
    input  logic [7:0]   s_axil_araddr,
    input  logic [2:0]   s_axil_arprot,
    output logic         s_axil_rvalid,
    input  logic         s_axil_rready,
    output logic [31:0]  s_axil_rdata,
    output logic [1:0]   s_axil_rresp,
    input  logic         s_a_tvalid,
    output logic         s_a_tready,
    input  logic         s_a_tlast,
    input  logic [127:0] s_a_tdata,
    input  logic         s_b_tvalid,
    output logic         s_b_tready,
    input  logic         s_b_tlast,
    input  logic [127:0] s_b_tdata,
    input  logic         s_mask_tvalid,
    output logic         s_mask_tready,
    input  logic         s_mask_tlast,
    input  logic [127:0] s_mask_tdata,
    output logic         m_mask_tvalid,
    input  logic         m_mask_tready,
    output logic         m_mask_tlast,
    output logic [127:0] m_mask_tdata,
    output logic         mask_flush,
    output logic         m_out_tvalid,
    input  logic         m_out_tready,
    output logic         m_out_tlast,
    output logic         m_out_tuser,
    output logic [15:0]  m_out_tkeep,
    output logic [127:0] m_out_tdata,
    output logic         irq
);
  localparam int LB = LOG_N - LOG_P;
  localparam int K = fc_pkg::K;

  logic rst;
  always_ff @(posedge clk) rst <= !rst_n;

  // ---- registers and commands
  logic hold, write, write_refuse, read, read_refuse;
  logic [7:0] write_addr, read_addr;
  logic [31:0] write_data, read_data;
  axil_slave #(.ADDR(8)) u_axil (
      .clk, .rst,
      .awvalid(s_axil_awvalid), .awready(s_axil_awready), .awaddr(s_axil_awaddr),
      .wvalid(s_axil_wvalid), .wready(s_axil_wready), .wdata(s_axil_wdata), .wstrb(s_axil_wstrb),
      .bvalid(s_axil_bvalid), .bready(s_axil_bready), .bresp(s_axil_bresp),
      .arvalid(s_axil_arvalid), .arready(s_axil_arready), .araddr(s_axil_araddr),
      .rvalid(s_axil_rvalid), .rready(s_axil_rready), .rdata(s_axil_rdata), .rresp(s_axil_rresp),
      .hold, .write, .write_addr, .write_data, .write_refuse, .read, .read_addr, .read_data, .read_refuse);
  // Any access may be made by any protection.
  logic unused;
  assign unused = &{s_axil_awprot, s_axil_arprot, 1'b0};

  logic preparing, encrypting, decrypting, keying, drain, start, flush, wipe, wipe_key;
  logic [LB-1:0] wipe_line;
  logic [15:0] count;
  logic [12:0] used, used_last;
  logic by_shift;
  logic [6:0] shift;
  logic [4:0] drop;
  logic [7:0] wire_bits;
  logic key_valid, key_ready, key_done;
  logic [1:0] key_word;
  logic packet_left, mask_used, mask_late, out_late, progress, starved;
  logic bad_length, bad_padding, bad_residue, bad_value, bad_plaintext, bad_mask;
  controller #(.LOG_N(LOG_N), .LOG_P(LOG_P), .SLOTS(SLOTS)) u_controller (
      .clk, .rst, .write, .write_addr, .write_data, .write_refuse, .read, .read_addr, .read_data, .read_refuse, .hold,
      .preparing, .encrypting, .decrypting, .keying, .drain, .start, .flush, .wipe, .wipe_key, .wipe_line,
      .count, .used, .used_last, .by_shift, .shift, .drop, .wire_bits,
      .key_valid, .key_word, .key_ready, .key_done,
      .packet_left, .mask_used, .progress, .starved,
      .bad_length, .bad_padding, .bad_residue, .bad_value, .bad_plaintext, .bad_mask, .irq);
  // What was on offer before stays so until it is taken; then it must be forgotten too.
  assign mask_flush = flush || mask_late;
  // A cycle late: it goes far. A command begins two cycles after the last flush.
  logic clear;
  always_ff @(posedge clk) clear <= rst || flush;

  // What only depends on the registers.
  logic [127:0] forbid, keep;
  logic [106:0] half;
  always_ff @(posedge clk) begin
    forbid <= ~128'b0 << (7'd105 - shift);
    keep <= ~(~128'b0 << wire_bits);
    half <= by_shift ? (107'd1 << shift) >> 1 : 107'(fc_constants_pkg::DELTA >> 1);
  end

  // ---- polynomials in: from the stream, or the key, as s N^-1 in residues
  logic [15:0] loads_left, outs_left;
  logic outs_some;  // outs_left != 0, where time is short; `loading` is that of loads_left
  logic in_valid, in_ready, in_last, in_shift, loading;
  logic [K-1:0] in_word0, in_word1;
  logic a_taken;
  assign a_taken = s_a_tvalid && s_a_tready;
  assign s_a_tready = drain || (loading && in_ready && !start);
  assign in_valid = keying ? key_valid : loading && s_a_tvalid && !start;
  assign key_ready = in_ready;
  localparam logic [52:0] ONE_0 = fc_pkg::inverse_of_n(fc_constants_pkg::N_INV_0, fc_constants_pkg::P0, LOG_N);
  localparam logic [52:0] ONE_1 = fc_pkg::inverse_of_n(fc_constants_pkg::N_INV_1, fc_constants_pkg::P1, LOG_N);
  always_comb begin
    in_word0 = s_a_tdata[52:0];
    in_word1 = s_a_tdata[116:64];
    if (keying) begin
      in_word0 = !key_word[0] ? '0 : key_word[1] ? fc_constants_pkg::P0 - ONE_0 : ONE_0;
      in_word1 = !key_word[0] ? '0 : key_word[1] ? fc_constants_pkg::P1 - ONE_1 : ONE_1;
    end
  end
  logic seen, seen_wrong;
  logic [127:0] seen_a;
  always_ff @(posedge clk) begin
    seen <= a_taken && loading && !rst && !flush;
    seen_wrong <= s_a_tlast != in_last;
    seen_a <= s_a_tdata;
    bad_residue <= seen && (seen_a[52:0] >= fc_constants_pkg::P0 || seen_a[116:64] >= fc_constants_pkg::P1 || seen_a[63:53] != 0 || seen_a[127:117] != 0);
    if (clear) begin
      loads_left <= '0;
      loading <= 1'b0;
    end else if (start) begin
      loads_left <= preparing || decrypting ? count : '0;
      loading <= preparing || decrypting;
    end else if (in_shift && in_last && !keying) begin
      loads_left <= loads_left - 1'b1;
      loading <= loads_left != 1;
    end
  end

  // ---- the transform
  logic in_full, in_taken, out_read, out_done, idle, moving;
  logic load_want, load_grant, read_want, read_grant, read_hold, read_bank;
  logic [LB-1:0] load_line, read_line;
  logic out_take, out_shift, out_valid, out_last, out_pop;
  logic [LOG_N:0] used_now;
  // A cycle late: poly_io looks at it two cycles after the last result has left.
  always_ff @(posedge clk) used_now <= (LOG_N + 1)'(outs_left == 1 ? used_last : used);
  poly_io #(.LOG_N(LOG_N), .LOG_P(LOG_P)) u_io (
      .clk, .rst(clear), .in_valid, .in_ready, .in_last, .in_shift, .load_want, .load_line, .load_grant, .in_full,
      .in_taken, .out_done, .out_read, .used(used_now), .read_want, .read_line, .read_grant, .read_hold,
      .out_take, .out_shift, .out_valid, .out_last, .out_pop);

  logic [1:0] op, w_op, io_we, work_we;
  logic from_io, r_swap, early, w_swap, load, w_wipe, key_we;
  logic [3:0] stage;
  logic [LB-1:0] io_r0, io_r1, work_r0, work_r1, key_r, twiddle, io_w0, io_w1, work_w0, work_w1, key_w;
  ntt_control #(.LOG_N(LOG_N), .LOG_P(LOG_P)) u_control (
      .clk, .rst(clear), .wipe, .wipe_key, .wipe_line, .to_key(keying), .in_full, .in_taken, .out_read, .out_done,
      .key_done, .idle, .moving, .load_want, .load_line, .load_grant, .read_want, .read_line, .read_grant, .read_hold,
      .read_bank,
      .op, .from_io, .r_swap, .io_r0, .io_r1, .work_r0, .work_r1, .key_r, .early, .stage, .twiddle,
      .w_op, .w_swap, .load, .w_wipe, .io_we, .io_w0, .io_w1, .work_we, .work_w0, .work_w1, .key_we, .key_w);

  logic [fc_pkg::control_bits(LB)-1:0] control;
  assign control = {
      op, from_io, r_swap, io_r0, io_r1, work_r0, work_r1, key_r, early, stage, twiddle, w_op, w_swap, load, w_wipe, io_we,
      io_w0, io_w1, work_we, work_w0, work_w1, key_we, key_w, in_shift, read_hold, read_bank, out_take, out_shift};
  logic [K-1:0] r0, r1;
  ntt_limb #(.LOG_N(LOG_N), .LOG_P(LOG_P), .LIMB(0), .CA(CA), .CB(CB)) u_limb0 (
      .clk, .control, .in_word_next(in_word0), .out_word(r0));
  ntt_limb #(.LOG_N(LOG_N), .LOG_P(LOG_P), .LIMB(1), .CA(CA), .CB(CB)) u_limb1 (
      .clk, .control, .in_word_next(in_word1), .out_word(r1));
  assign starved = loading && idle && !in_full;

  // ---- operands, a coefficient each: e, plaintexts or c0
  logic b_ready, b_valid, b_length, b_padding;
  logic [127:0] b_data;
  logic [7:0] b_width;
  logic operand_room, operand_valid, operand_pop;
  logic [127:0] operand;
  always_ff @(posedge clk) b_width <= preparing ? 8'd8 : encrypting ? 8'd128 : wire_bits;
  bit_unpacker u_unpacker (
      .clk, .rst(clear), .start, .width(b_width), .packets(count), .count(used), .count_last(used_last),
      .in_valid(s_b_tvalid && !drain), .in_ready(b_ready), .in_last(s_b_tlast), .in_data(s_b_tdata),
      .room(operand_room), .out_valid(b_valid), .out_data(b_data), .wrong_length(b_length), .wrong_padding(b_padding));
  assign s_b_tready = drain || (b_ready && !start);
  fifo #(.W(128), .DEPTH(16), .SLACK(8)) u_operands (
      .clk, .flush(clear), .in_valid(b_valid), .in_data(b_data), .room(operand_room),
      .out_valid(operand_valid), .out_data(operand), .out_ready(operand_pop));

  // ---- which coefficient goes on: what it needs is there, and there is room for what comes of it
  logic out_room, paused, go, go_last, mask_last;
  logic [12:0] mask_left;
  always_comb begin
    go = operand_valid && out_room && !paused && outs_some && !start && !clear &&
         (encrypting ? s_mask_tvalid : out_valid);
    go_last = encrypting ? mask_last : out_last;
  end
  // Whether a ciphertext has one coefficient only, and so its first is its last: known before a command.
  logic one_used, one_used_last;
  always_ff @(posedge clk) begin
    one_used <= used == 1;
    one_used_last <= used_last == 1;
  end
  assign operand_pop = go;
  assign out_pop = go && !encrypting;
  assign s_mask_tready = go && encrypting;
  always_ff @(posedge clk) begin
    paused <= go && go_last;  // the packer ends a packet
    mask_used <= go && encrypting && mask_last;
    bad_mask <= go && encrypting && s_mask_tlast != mask_last;
    if (clear) begin
      outs_left <= '0;
      outs_some <= 1'b0;
      mask_left <= '0;
      mask_last <= 1'b0;
    end else if (start) begin
      outs_left <= keying ? '0 : count;
      outs_some <= !keying;
      mask_left <= count == 1 ? used_last : used;
      mask_last <= count == 1 ? one_used_last : one_used;
    end else if (go) begin
      if (go_last) begin
        outs_left <= outs_left - 1'b1;
        outs_some <= outs_left != 1;
      end
      mask_left <= mask_last ? (outs_left == 2 ? used_last : used) : mask_left - 1'b1;
      mask_last <= mask_last ? (outs_left == 2 ? one_used_last : one_used) : mask_left == 2;
    end
    bad_length <= b_length || (seen && seen_wrong);
    bad_padding <= b_padding;
  end

  // ---- the three datapaths; each word is of the command that runs
  logic [105:0] product, mask_sum;
  logic [127:0] operand_later, encrypted, decrypted;
  logic refused_e, refused_d, outside;
  garner #(.CA(CA), .CB(CB)) u_garner (.clk, .r0, .r1, .x(product));
  delay #(.W(128), .LATENCY(fc_pkg::PRODUCT_LATENCY)) u_operand (.clk, .d(operand), .q(operand_later));
  masker u_masker (.clk, .product, .e(operand_later[7:0]), .sum(mask_sum));
  decryptor #(.CA(CA), .CB(CB)) u_decryptor (
      .clk, .by_shift, .half, .product, .c0(operand_later), .word(decrypted), .outside, .refused(refused_d));
  encryptor #(.CA(CA), .CB(CB)) u_encryptor (
      .clk, .by_shift, .shift, .forbid, .drop, .keep, .mask(s_mask_tdata[105:0]), .m(operand), .word(encrypted),
      .refused(refused_e));

  // Valid and last of each, as long as it takes.
  logic quiet;
  assign quiet = clear || start;
  localparam int FULL = fc_pkg::PRODUCT_LATENCY + fc_pkg::DIVIDE_LATENCY;
  localparam int MASKED = fc_pkg::PRODUCT_LATENCY + fc_pkg::MASK_LATENCY;
  logic [FULL:0] valids, lasts;
  always_comb begin
    valids[0] = go;
    lasts[0] = go_last;
  end
  always_ff @(posedge clk) begin
    // Nothing of the last command, whose words left earlier in their way than this one's will.
    valids[FULL:1] <= quiet ? '0 : valids[FULL-1:0];
    lasts[FULL:1] <= lasts[FULL-1:0];
  end

  logic p_valid, p_last;
  logic [127:0] p_word;
  always_ff @(posedge clk) begin
    p_valid <= !quiet &&
               (encrypting ? valids[fc_pkg::ENCRYPT_LATENCY]
                : preparing ? valids[MASKED] : decrypting && valids[FULL]);
    p_last <= encrypting ? lasts[fc_pkg::ENCRYPT_LATENCY]
              : preparing ? lasts[MASKED] : lasts[FULL];
    p_word <= encrypting ? encrypted : preparing ? 128'(mask_sum) : decrypted;
    bad_value <= !quiet && ((encrypting && valids[fc_pkg::ENCRYPT_LATENCY+1] && refused_e) || (decrypting && valids[FULL] && refused_d));
    bad_plaintext <= !quiet && decrypting && valids[FULL] && !refused_d && outside;
  end

  // ---- out
  logic q_valid, q_last, f_valid, f_last, f_ready;
  logic [15:0] q_keep, f_keep;
  logic [127:0] q_data, f_data;
  bit_packer u_packer (
      .clk, .rst(clear), .width(encrypting ? wire_bits : 8'd128), .valid(p_valid), .last(p_last), .word(p_word),
      .out_valid(q_valid), .out_last(q_last), .out_keep(q_keep), .out_data(q_data));
  fifo #(.W(145), .DEPTH(64), .SLACK(FULL + 10)) u_results (
      .clk, .flush(clear), .in_valid(q_valid), .in_data({q_last, q_keep, q_data}), .room(out_room),
      .out_valid(f_valid), .out_data({f_last, f_keep, f_data}), .out_ready(f_ready));

  logic mask_ready, host_ready, unused_user;
  logic [15:0] unused_keep;
  // A cycle late, as `clear`: a mask on its way when a command breaks off must not turn to the host.
  logic to_mask;
  always_ff @(posedge clk) to_mask <= preparing;
  assign f_ready = to_mask ? mask_ready : host_ready;
  stream_out u_mask (
      .clk, .rst, .abort(clear), .in_valid(f_valid && to_mask), .in_ready(mask_ready), .in_last(f_last),
      .in_keep(f_keep), .in_data(f_data), .out_valid(m_mask_tvalid), .out_ready(m_mask_tready),
      .out_last(m_mask_tlast), .out_user(unused_user), .out_late(mask_late), .out_keep(unused_keep),
      .out_data(m_mask_tdata));
  stream_out u_host (
      .clk, .rst, .abort(clear), .in_valid(f_valid && !to_mask), .in_ready(host_ready), .in_last(f_last),
      .in_keep(f_keep), .in_data(f_data), .out_valid(m_out_tvalid), .out_ready(m_out_tready),
      .out_last(m_out_tlast), .out_user(m_out_tuser), .out_late, .out_keep(m_out_tkeep), .out_data(m_out_tdata));

  always_ff @(posedge clk) begin
    packet_left <= (m_mask_tvalid && m_mask_tready && m_mask_tlast && !mask_late) ||
                   (m_out_tvalid && m_out_tready && m_out_tlast && !out_late);
    progress <= a_taken || (s_b_tvalid && s_b_tready) || go || (m_mask_tvalid && m_mask_tready) ||
                (m_out_tvalid && m_out_tready) || moving || key_valid;
  end
endmodule
