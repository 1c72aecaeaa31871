// Unsigned product of WA by WB bits, from partial products of CA by CB bits: one DSP each.
//
// Latency 5 cycles, one product a cycle. UltraScale+ takes CA = 26, CB = 17; ECP5 takes 18 and 18. CB must not exceed
// CA, and WB not 4 CB.
module mul_pipe #(
    parameter int WA = 53,
    parameter int WB = 53,
    parameter int CA = 26,
    parameter int CB = 17
) (
    input  logic             clk,
    input  logic [WA-1:0]    a,
    input  logic [WB-1:0]    b,
    output logic [WA+WB-1:0] p
);
  /*verilator no_inline_module*/  // one function for all of them, not one each
  localparam int NA = (WA + CA - 1) / CA;
  localparam int NB = (WB + CB - 1) / CB;
  localparam int WR = (NA + 1) * CA;  // a row: a times one chunk of b
  localparam int WP = WA + WB;

  logic [NA*CA-1:0] a1;
  logic [NB*CB-1:0] b1;
  always_ff @(posedge clk) begin
    a1 <= (NA * CA)'(a);
    b1 <= (NB * CB)'(b);
  end

  logic [WP-1:0] row[4];
  for (genvar j = 0; j < 4; j++) begin : g_row
    if (j < NB) begin : g_used
      // Partial products of even chunks of a do not overlap each other, nor do those of odd ones.
      logic [CA+CB-1:0] part[NA];
      logic [WR-1:0] even, odd;
      always_ff @(posedge clk) begin
        for (int i = 0; i < NA; i++) part[i] <= a1[i*CA+:CA] * b1[j*CB+:CB];
      end
      always_comb begin
        even = '0;
        odd  = '0;
        for (int i = 0; i < NA; i++) begin
          if (i % 2 == 0) even[i*CA+:CA+CB] = part[i];
          else odd[i*CA+:CA+CB] = part[i];
        end
      end
      logic [WR-1:0] sum;
      always_ff @(posedge clk) sum <= even + odd;
      assign row[j] = WP'(sum);
    end else begin : g_none
      assign row[j] = '0;
    end
  end

  logic [WP-1:0] low, high;
  always_ff @(posedge clk) begin
    low  <= row[0] + (row[1] << CB);
    high <= row[2] + (row[3] << CB);
    p    <= low + (high << (2 * CB));
  end
endmodule
