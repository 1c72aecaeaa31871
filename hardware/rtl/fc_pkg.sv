// What all modules share beside the numbers of fc_constants_pkg.
package fc_pkg;
  // Every prime is p = 2^K - C 2^S + 1 with C = 2^A + 2^B - 2^D - 2^E, so that 2^K = C 2^S - 1 (mod p) folds the
  // upper half of a product onto the lower with shifts and adds. A shift of -1 stands for no term.
  localparam int K = 53;
  localparam int S = 13;
  // Limb 0: C = 38 = 32 + 8 - 2. Limb 1: C = 46 = 32 + 16 - 2.
  localparam int C_A = 5;
  localparam int C_B_0 = 3;
  localparam int C_B_1 = 4;
  localparam int C_D = 1;
  localparam int C_E = -1;

  // Cycles from operands to result.
  localparam int MUL_LATENCY = 5;
  localparam int MODMUL_LATENCY = MUL_LATENCY + 7;
  localparam int BUTTERFLY_LATENCY = MODMUL_LATENCY + 4;
  // From a read in the control word to the cycle whose edge writes the results.
  localparam int NTT_LATENCY = BUTTERFLY_LATENCY + 4;
  localparam int GARNER_LATENCY = MODMUL_LATENCY + 8;
  // From the cycle in which a coefficient leaves poly_io: the limbs have a register before it.
  localparam int PRODUCT_LATENCY = 1 + GARNER_LATENCY;
  localparam int MASK_LATENCY = 3;
  localparam int DIVIDE_LATENCY = 2 * MUL_LATENCY + 7;
  localparam int ENCRYPT_LATENCY = MUL_LATENCY + 6;

  // What a pass over a polynomial does.
  localparam logic [1:0] OP_FORWARD = 2'd0;
  localparam logic [1:0] OP_INVERSE = 2'd1;
  localparam logic [1:0] OP_PRODUCT = 2'd2;  // by the key, a line a cycle
  localparam logic [1:0] OP_COPY = 2'd3;     // into the key's memory, a line a cycle

  // Bits of the word by which ntt_control and poly_io drive a limb, for lines of 2^lb: eleven addresses, and the rest.
  function automatic integer control_bits(input integer lb);
    control_bits = 11 * lb + 24;
  endfunction

  // N^-1 mod p for a smaller N of the same root: N_INV of 4096 doubled.
  function automatic logic [52:0] inverse_of_n(input logic [52:0] of_4096, input logic [52:0] p, input integer log_n);
    logic [53:0] value;
    value = {1'b0, of_4096};
    for (int i = log_n; i < 12; i++) begin
      value = value << 1;
      if (value >= {1'b0, p}) value = value - {1'b0, p};
    end
    inverse_of_n = value[52:0];
  endfunction
endpackage
