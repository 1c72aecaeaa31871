// Where the P butterflies of step c find their operands and put their results: constant geometry (Pease).
//
// A polynomial is N/P lines of P words. Line L lies in bank L[0] ^ L[top] at address L / 2, P words wide, so 2 P words
// a cycle are two lines of different banks:
//   OP_FORWARD reads lines c and c + H, writes lines 2c and 2c + 1      (H = N / 2P)
//   OP_INVERSE reads lines 2c and 2c + 1, writes lines c and c + H
//   OP_PRODUCT, OP_COPY: line c, read and written alone
// `swap` says that the first line is in bank 1. hardware/formal proves that the two never meet in a bank and that no
// step touches what another step of its pass touches. Combinational.
module ntt_address
#(
    parameter int LINE_BITS = 9  // log2(N / P)
) (
    input  logic [1:0]           op,
    input  logic [LINE_BITS-1:0] c,
    output logic [LINE_BITS-2:0] r0,  // bank 0's address
    output logic [LINE_BITS-2:0] r1,
    output logic                 r_swap,
    output logic [LINE_BITS-2:0] w0,
    output logic [LINE_BITS-2:0] w1,
    output logic                 w_swap
);
  localparam int TOP = LINE_BITS - 1;

  // Lines c and c + H: halves of the address space; lines 2c and 2c + 1: the same address.
  logic [LINE_BITS-2:0] low, high, both, alone;
  logic apart_swap, both_swap, alone_swap;
  always_comb begin
    low = {1'b0, c[TOP-1:1]};
    high = {1'b1, c[TOP-1:1]};
    apart_swap = c[0];
    both = c[TOP-1:0];
    both_swap = c[TOP-1];
    alone = c[TOP:1];
    alone_swap = c[0] ^ c[TOP];

    unique case (op)
      fc_pkg::OP_FORWARD: begin
        r0 = apart_swap ? high : low;
        r1 = apart_swap ? low : high;
        r_swap = apart_swap;
        w0 = both;
        w1 = both;
        w_swap = both_swap;
      end
      fc_pkg::OP_INVERSE: begin
        r0 = both;
        r1 = both;
        r_swap = both_swap;
        w0 = apart_swap ? high : low;
        w1 = apart_swap ? low : high;
        w_swap = apart_swap;
      end
      default: begin
        r0 = alone;
        r1 = alone;
        r_swap = alone_swap;
        w0 = alone;
        w1 = alone;
        w_swap = alone_swap;
      end
    endcase
  end
endmodule
