// The memories and butterflies of one limb; ntt_control drives two of them in step.
//
// Three polynomials: what arrives and leaves (`io`, halves 0 and 1), what is worked on (`work`, ping and pong) and the
// key (`key`), which is written by OP_COPY and read by OP_PRODUCT only. Per cycle: P butterflies.
module ntt_limb
#(
    parameter int LOG_N = 12,
    parameter int LOG_P = 3,
    parameter int LIMB = 0,
    parameter int CA = 26,
    parameter int CB = 17,
    localparam int K = fc_pkg::K,
    localparam int LB = LOG_N - LOG_P
) (
    input logic clk,
    // A cycle ahead, packed as below: all that follows is a cycle later here than in ntt_control and poly_io.
    input logic [fc_pkg::control_bits(LB)-1:0] control,
    input logic [K-1:0] in_word_next,
    output logic [K-1:0] out_word
);
  // Each limb has registers of its own: both together are too many places, too far apart, for one.
  // The cycle of a read: addresses, and what becomes of the data.
  logic [1:0] op;
  logic from_io, r_swap, early;
  logic [LB-1:0] io_r0, io_r1, work_r0, work_r1, key_r, twiddle;
  logic [3:0] stage;
  // The cycle before a write: what goes into the write registers.
  logic [1:0] w_op;
  logic w_swap, load, wipe;
  // The cycle of a write.
  logic [1:0] io_we, work_we;
  logic key_we;
  logic [LB-1:0] io_w0, io_w1, work_w0, work_w1, key_w;
  // Coefficients in: the last P of them are a line. Out: a line that was read is held, taken, and shifted.
  logic in_shift, out_hold, out_bank, out_take, out_shift;
  logic [K-1:0] in_word;
  always_ff @(posedge clk) begin
    {op, from_io, r_swap, io_r0, io_r1, work_r0, work_r1, key_r, early, stage, twiddle, w_op, w_swap, load, wipe, io_we,
     io_w0, io_w1, work_we, work_w0, work_w1, key_we, key_w, in_shift, out_hold, out_bank, out_take, out_shift} <= control;
    in_word <= in_word_next;
  end

  localparam int P = 1 << LOG_P;
  localparam int LINE = P * K;

  logic [LINE-1:0] io_q0, io_q1, work_q0, work_q1, key_q;
  logic [LINE-1:0] io_d0, io_d1, result0, result1;
  bank_ram #(.W(LINE), .DEPTH(1 << LB)) u_io0 (
      .clk, .we(io_we[0]), .waddr(io_w0), .wdata(io_d0), .raddr(io_r0), .rdata(io_q0));
  bank_ram #(.W(LINE), .DEPTH(1 << LB)) u_io1 (
      .clk, .we(io_we[1]), .waddr(io_w1), .wdata(io_d1), .raddr(io_r1), .rdata(io_q1));
  bank_ram #(.W(LINE), .DEPTH(1 << LB)) u_work0 (
      .clk, .we(work_we[0]), .waddr(work_w0), .wdata(result0), .raddr(work_r0), .rdata(work_q0));
  bank_ram #(.W(LINE), .DEPTH(1 << LB)) u_work1 (
      .clk, .we(work_we[1]), .waddr(work_w1), .wdata(result1), .raddr(work_r1), .rdata(work_q1));
  bank_ram #(.W(LINE), .DEPTH(1 << LB)) u_key (
      .clk, .we(key_we), .waddr(key_w), .wdata(result0), .raddr(key_r), .rdata(key_q));

  // With the data, two cycles after the address.
  logic [1:0] op2, op3;
  logic from_io2, swap2;
  delay #(.W(4), .LATENCY(2)) u_control (.clk, .d({op, from_io, r_swap}), .q({op2, from_io2, swap2}));
  always_ff @(posedge clk) op3 <= op2;

  logic [LINE-1:0] q0, q1;
  logic [2*LINE-1:0] pair;  // second line above the first
  always_comb begin
    q0 = from_io2 ? io_q0 : work_q0;
    q1 = from_io2 ? io_q1 : work_q1;
    pair = swap2 ? {q0, q1} : {q1, q0};
  end

  logic [LINE-1:0] table_w;
  logic [2*LINE-1:0] out_forward, out_inverse;
  logic [LINE-1:0] out_alone;
  for (genvar l = 0; l < P; l++) begin : g_lane
    twiddle_rom #(.LOG_N(LOG_N), .LOG_P(LOG_P), .LIMB(LIMB), .LANE(l)) u_rom (
        .clk, .early, .stage, .addr(twiddle), .w(table_w[l*K+:K]));

    logic [K-1:0] a, b, w, x, y;
    always_ff @(posedge clk) begin
      a <= op2 == fc_pkg::OP_INVERSE ? pair[2*l*K+:K] : pair[l*K+:K];
      unique case (op2)
        fc_pkg::OP_FORWARD: b <= pair[LINE+l*K+:K];
        fc_pkg::OP_INVERSE: b <= pair[(2*l+1)*K+:K];
        default: b <= pair[l*K+:K];
      endcase
      unique case (op2)
        fc_pkg::OP_FORWARD: w <= table_w[l*K+:K];
        fc_pkg::OP_INVERSE: w <= table_w[(P-1-l)*K+:K];  // the mirrored lane has psi^(N-k)
        fc_pkg::OP_PRODUCT: w <= key_q[l*K+:K];
        default: w <= K'(1);
      endcase
    end
    butterfly #(.B_SHIFT(LIMB == 0 ? fc_pkg::C_B_0 : fc_pkg::C_B_1), .CA(CA), .CB(CB)) u_butterfly (
        .clk, .op(op3), .a, .b, .w, .x, .y);

    assign out_forward[2*l*K+:2*K] = {y, x};
    assign out_inverse[l*K+:K] = x;
    assign out_inverse[LINE+l*K+:K] = y;
    assign out_alone[l*K+:K] = y;
  end

  logic [2*LINE-1:0] out_pair;
  logic [LINE-1:0] line_in;
  always_comb begin
    unique case (w_op)
      fc_pkg::OP_FORWARD: out_pair = out_forward;
      fc_pkg::OP_INVERSE: out_pair = out_inverse;
      default: out_pair = {out_alone, out_alone};
    endcase
  end
  always_ff @(posedge clk) begin
    result0 <= wipe ? '0 : w_swap ? out_pair[LINE+:LINE] : out_pair[0+:LINE];
    result1 <= wipe ? '0 : w_swap ? out_pair[0+:LINE] : out_pair[LINE+:LINE];
    io_d0   <= wipe ? '0 : load ? line_in : w_swap ? out_pair[LINE+:LINE] : out_pair[0+:LINE];
    io_d1   <= wipe ? '0 : load ? line_in : w_swap ? out_pair[0+:LINE] : out_pair[LINE+:LINE];
  end

  always_ff @(posedge clk) begin
    if (wipe) line_in <= '0;
    else if (in_shift) line_in <= {in_word, line_in[LINE-1:K]};
  end

  logic [LINE-1:0] held, leaving;
  always_ff @(posedge clk) begin
    if (wipe) held <= '0;
    else if (out_hold) held <= out_bank ? io_q1 : io_q0;
    if (wipe) leaving <= '0;
    else if (out_take) leaving <= held;
    else if (out_shift) leaving <= {K'(0), leaving[LINE-1:K]};
  end
  assign out_word = leaving[K-1:0];
endmodule
