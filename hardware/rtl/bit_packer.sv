// Words of `width` bits in a row, least significant bit first, as the core's BitWriter lays them out.
//
// A word a cycle, but for one cycle without a word after a `last` one, which ends a packet. Latency 4 cycles.
// `data` beats are whole but for a packet's last, of which `keep` tells the bytes.
module bit_packer (
    input  logic         clk,
    input  logic         rst,
    input  logic [7:0]   width,  // 1 to 128
    input  logic         valid,
    input  logic         last,
    input  logic [127:0] word,
    output logic         out_valid,
    output logic         out_last,
    output logic [15:0]  out_keep,
    output logic [127:0] out_data
);
  // Where the word begins, and whether it fills a beat.
  logic [6:0] at, at1;
  logic [7:0] end_at, end1, end2, end3;
  logic valid1, valid2, valid3, last1, last2, last3;
  assign end_at = {1'b0, at} + width;  // at most 255
  logic [127:0] word1;
  logic [158:0] up1;
  logic [1:0] coarse1;
  logic [254:0] up3;
  always_ff @(posedge clk) begin
    if (rst || (valid && last)) at <= '0;
    else if (valid) at <= end_at[6:0];
    valid1 <= valid && !rst;
    valid2 <= valid1 && !rst;
    valid3 <= valid2 && !rst;
    last1 <= last;
    last2 <= last1;
    last3 <= last2;
    at1 <= at;
    word1 <= word;
    end1 <= end_at;
    end2 <= end1;
    end3 <= end2;

    up1 <= 159'(word1) << at1[4:0];
    coarse1 <= at1[6:5];

    up3 <= 255'(up1) << {coarse1, 5'b0};
  end

  logic [127:0] kept;
  logic tail;
  logic [6:0] tail_bits;
  logic full;
  assign full = end3[7];
  function automatic logic [15:0] bytes(input logic [6:0] bits);
    bytes = ~(16'hffff << ((8'(bits) + 8'd7) >> 3));
  endfunction
  always_ff @(posedge clk) begin
    out_valid <= 1'b0;
    out_last <= 1'b0;
    out_keep <= '1;
    out_data <= kept | up3[127:0];
    tail <= 1'b0;
    tail_bits <= end3[6:0];
    if (rst) begin
      kept <= '0;
    end else if (tail) begin
      out_valid <= 1'b1;
      out_last <= 1'b1;
      out_keep <= bytes(tail_bits);
      out_data <= kept;
      kept <= '0;
    end else if (valid3) begin
      if (last3) begin
        out_valid <= 1'b1;
        out_last <= !full || end3[6:0] == 0;
        if (!full) out_keep <= bytes(end3[6:0]);
        kept <= full ? {1'b0, up3[254:128]} : '0;
        tail <= full && end3[6:0] != 0;
      end else begin
        out_valid <= full;
        kept <= full ? {1'b0, up3[254:128]} : kept | up3[127:0];
      end
    end
  end
endmodule
