// Beats of 128 bits into words of `width` bits: what bit_packer undoes. `count` words a packet, of `packets`.
//
// A word a cycle, one cycle more a packet to see that what is behind its last word is zero. Latency 5 cycles from a
// beat to its word. `wrong_length`: a packet's last beat comes early or late; `wrong_padding`: bits behind the last
// word. After either nothing more comes until `start`. `width` may change until the cycle after `start`.
module bit_unpacker (
    input  logic         clk,
    input  logic         rst,
    input  logic         start,
    input  logic [7:0]   width,       // 1 to 128
    input  logic [15:0]  packets,
    input  logic [12:0]  count,
    input  logic [12:0]  count_last,  // of the last packet
    input  logic         in_valid,
    output logic         in_ready,
    input  logic         in_last,
    input  logic [127:0] in_data,
    input  logic         room,
    output logic         out_valid,
    output logic [127:0] out_data,
    output logic         wrong_length,
    output logic         wrong_padding
);
  logic [127:0] now, next;
  logic now_valid, next_valid, now_last, next_last;
  logic [6:0] at;
  logic [7:0] end_at, end_next;  // at + width, a cycle ahead: an adder before all that follows is too long
  logic [15:0] left;
  logic [12:0] words;
  logic checking, stopped, more, running;

  logic spans, can, advance, moves, last_word, needs_more;
  always_comb begin
    spans = end_at > 8'd128;
    needs_more = spans && now_last;
    last_word = words == 1;
    running = more && !stopped;
    can = running && !checking && now_valid && (next_valid || !spans) && !needs_more && room;
    advance = can && end_at[7];
    moves = advance || !now_valid;  // what is next becomes now
    end_next = {1'b0, can ? end_at[6:0] : at} + width;
    // Nothing of the next packet before this one has ended.
    in_ready = running && !checking && (!next_valid || moves) && !(now_valid && now_last) &&
               !(next_valid && next_last);
  end

  // Which of the two is the beat that has the last word's last bit: it must be the packet's last.
  logic ends_in_last;
  assign ends_in_last = spans ? next_last : now_last;

  always_ff @(posedge clk) begin
    wrong_length <= 1'b0;
    if (rst) begin
      left <= '0;
      more <= 1'b0;
      stopped <= 1'b0;
      now_valid <= 1'b0;
      next_valid <= 1'b0;
      checking <= 1'b0;
      at <= '0;
      end_at <= '0;
      words <= '0;
      now <= '0;
      next <= '0;
      now_last <= 1'b0;
      next_last <= 1'b0;
    end else if (start) begin
      left <= packets;
      more <= packets != 0;
      words <= packets == 1 ? count_last : count;
      stopped <= 1'b0;
      at <= '0;
      end_at <= width;
      now_valid <= 1'b0;
      next_valid <= 1'b0;
      checking <= 1'b0;
    end else begin
      end_at <= end_next;
      if (in_valid && in_ready) begin
        next <= in_data;
        next_last <= in_last;
        next_valid <= 1'b1;
      end
      if (moves) begin
        now <= next;
        now_last <= next_last;
        now_valid <= next_valid;
        if (!(in_valid && in_ready)) next_valid <= 1'b0;
      end
      if (can) begin
        at <= end_at[6:0];
        words <= words - 1'b1;
        if (last_word) begin
          if (!ends_in_last) begin
            wrong_length <= 1'b1;
            stopped <= 1'b1;
          end
          checking <= 1'b1;
        end
      end
      // The packet is over and its words are not.
      if ((running && !checking && now_valid && needs_more) || (can && !last_word && end_at[7] && now_last)) begin
        wrong_length <= 1'b1;
        stopped <= 1'b1;
      end
      if (checking) begin
        checking <= 1'b0;
        now_valid <= 1'b0;
        next_valid <= 1'b0;
        at <= '0;
        end_at <= width;
        left <= left - 1'b1;
        more <= left != 1;
        words <= left == 2 ? count_last : count;
      end
    end
  end

  // The words, and what is behind the last of a packet.
  logic [254:0] window;
  logic [158:0] down1;
  logic [134:0] down2;
  logic [127:0] down3, mask;
  logic word0, word1, word2, word3, word4, check0, check1, check2, check3;
  logic [6:0] at0;
  logic [4:0] at1;
  logic [2:0] at2;
  always_ff @(posedge clk) begin
    window <= checking ? {127'b0, now_valid ? now : 128'b0} : {next_valid ? next[126:0] : 127'b0, now};
    at0 <= at;
    word0 <= can && !rst && !start;
    check0 <= checking && !rst && !start;

    down1 <= 159'(window >> {at0[6:5], 5'b0});
    at1 <= at0[4:0];
    word1 <= word0 && !rst;
    check1 <= check0 && !rst;

    down2 <= 135'(down1 >> {at1[4:3], 3'b0});
    at2 <= at1[2:0];
    word2 <= word1 && !rst;
    check2 <= check1 && !rst;

    down3 <= 128'(down2 >> at2);
    word3 <= word2 && !rst;
    check3 <= check2 && !rst;

    out_data <= down3 & mask;
    word4 <= word3 && !rst;
    wrong_padding <= check3 && !rst && down3 != 0;
    mask <= ~(~128'b0 << width);
  end
  assign out_valid = word4;
endmodule
