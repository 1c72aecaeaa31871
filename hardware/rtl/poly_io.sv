// Coefficients into lines of the io memory, and lines of it into coefficients; one of each a cycle at most.
//
// In: N words are a polynomial; `in_full` rises when the last line is written and falls with `in_taken`. Out: from
// `out_done` on, or two cycles after the result before has left, the first `used` words of the result. `out_read`: all
// of its lines have been asked for; else those below `read_line` have.
module poly_io #(
    parameter int LOG_N = 12,
    parameter int LOG_P = 3,
    localparam int LB = LOG_N - LOG_P
) (
    input  logic          clk,
    input  logic          rst,
    // In
    input  logic          in_valid,
    output logic          in_ready,
    output logic          in_last,   // the word on offer is the polynomial's last
    output logic          in_shift,
    output logic          load_want,
    output logic [LB-1:0] load_line,
    input  logic          load_grant,
    output logic          in_full,
    input  logic          in_taken,
    // Out
    input  logic          out_done,
    output logic          out_read,
    input  logic [LOG_N:0] used,
    output logic          read_want,
    output logic [LB-1:0] read_line,
    input  logic          read_grant,
    input  logic          read_hold,
    output logic          out_take,
    output logic          out_shift,
    output logic          out_valid,
    output logic          out_last,
    input  logic          out_pop
);
  localparam int P = 1 << LOG_P;

  // ---- in
  logic [LOG_N-1:0] taken;  // words of this polynomial
  logic line_full, line_last;
  always_comb begin
    // A line that is being written makes room for the next word in the same cycle.
    in_ready = !in_full && !(line_full && (!load_grant || line_last));
    in_shift = in_valid && in_ready;
    in_last = taken == '1;
    load_want = line_full;
  end
  always_ff @(posedge clk) begin
    if (rst) begin
      taken <= '0;
      line_full <= 1'b0;
      line_last <= 1'b0;
      load_line <= '0;
      in_full <= 1'b0;
    end else begin
      if (in_shift) taken <= taken + 1'b1;
      if (in_shift && (&taken[LOG_P-1:0])) begin
        line_full <= 1'b1;
        line_last <= in_last;
      end else if (load_grant) begin
        line_full <= 1'b0;
      end
      if (load_grant) begin
        load_line <= load_line + 1'b1;
        if (line_last) in_full <= 1'b1;
      end
      if (in_taken) in_full <= 1'b0;
    end
  end

  // ---- out
  logic [LOG_N:0] left;      // words that have not left
  logic [LB:0] lines;        // lines that have not been asked for
  logic [LOG_P:0] here;      // words in the shift register; `out_valid` says that there are any
  logic asked, held;
  logic out_full;            // a result is leaving
  logic waiting, apart;      // another one is there; none was leaving a cycle ago
  always_comb begin
    out_read = lines == 0 && !waiting;
    read_want = out_full && !asked && !held && lines != 0;
    out_shift = out_valid && out_pop;
    out_take = held && (here == 0 || (here == 1 && out_pop));
  end
  always_ff @(posedge clk) begin
    if (rst) begin
      out_full <= 1'b0;
      left <= '0;
      lines <= '0;
      here <= '0;
      out_valid <= 1'b0;
      out_last <= 1'b0;
      asked <= 1'b0;
      held <= 1'b0;
      read_line <= '0;
      waiting <= 1'b0;
      apart <= 1'b1;
    end else begin
      apart <= !out_full;
      if (out_done) waiting <= 1'b1;
      if (waiting && apart && !out_full) begin
        waiting <= 1'b0;
        out_full <= 1'b1;
        left <= used;
        out_last <= used == 1;
        lines <= (LB + 1)'((used + (LOG_N + 1)'(P - 1)) >> LOG_P);
        read_line <= '0;
      end
      if (read_grant) begin
        asked <= 1'b1;
        lines <= lines - 1'b1;
        read_line <= read_line + 1'b1;
      end
      if (read_hold) begin
        asked <= 1'b0;
        held <= 1'b1;
      end
      if (out_take) begin
        held <= 1'b0;
        here <= (LOG_P + 1)'(P);
        out_valid <= 1'b1;
      end else if (out_shift) begin
        here <= here - 1'b1;
        out_valid <= here != 1;
      end
      if (out_shift) begin
        left <= left - 1'b1;
        out_last <= left == 2;
        if (out_last) begin
          out_full <= 1'b0;
          out_valid <= 1'b0;
          here <= '0;  // what is behind the last word is not used
        end
      end
    end
  end
endmodule
