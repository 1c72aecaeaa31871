// Written by hardware/tools/constants.py: do not edit.
package fc_constants_pkg;
  localparam logic [52:0] P0 = 53'd9007199254429697;
  localparam logic [52:0] P1 = 53'd9007199254364161;
  localparam logic [105:0] Q = 106'd81129638408408593701538410889217;
  // P0^-1 mod P1, for the Chinese remainder theorem (Garner).
  localparam logic [52:0] GARNER = 53'd2251662374637574;
  // N^-1: what the inverse transform still has to be multiplied by; the key is.
  localparam logic [52:0] N_INV_0 = 53'd9005000231174221;
  localparam logic [52:0] N_INV_1 = 53'd9005000231108701;
  // The plaintext modulus of the preset `fedbit-paper`, floor(q / t), and what its division multiplies by.
  localparam logic [31:0] T = 32'd2281701377;
  localparam logic [74:0] DELTA = 75'd35556641735071624011882;
  localparam logic [40:0] DELTA_INV = 41'd1168231105113;
  // The first twiddles: powers of a root of order 2N, exponents bit-reversed; index 0 is the lowest word.
  localparam logic [16*53-1:0] FIRST_0 = {
    53'h00908bc8c934e1,
    53'h05ea312735e73a,
    53'h1376e64e6a1f7d,
    53'h02343d141373ad,
    53'h03ffef7868ad25,
    53'h1867b65f047215,
    53'h04b17e7f32b818,
    53'h0b33bfb859c200,
    53'h0b125741e1c2bc,
    53'h03a21dd4a55ae0,
    53'h10d2a0d46480c6,
    53'h044e8c17fc72ac,
    53'h1bbb08f5e19a21,
    53'h172931ee6e703d,
    53'h161d8d66678c0e,
    53'h00000000000001
  };
  localparam logic [16*53-1:0] FIRST_1 = {
    53'h08ff74bca268cb,
    53'h105f8da9706dc1,
    53'h0c30c6d188749b,
    53'h096b1d45a8bf4a,
    53'h180389e9496c5a,
    53'h0e3685fe82d98d,
    53'h0efd1f94db0a28,
    53'h1e2d77853eaed1,
    53'h029509ea361026,
    53'h0924fbbd29f6ee,
    53'h13787b7ad3a9c5,
    53'h19c55a7d6df845,
    53'h11846914e6afde,
    53'h161e3b0bd8b684,
    53'h1f2b1179c34fd5,
    53'h00000000000001
  };
endpackage
