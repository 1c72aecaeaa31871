// Folder of the tables that hardware/tools/constants.py --tables writes.
`ifndef FC_TABLES
`define FC_TABLES "tables"
`endif

// The twiddles of one lane: of the table, what has an index of LANE mod P. Latency 2 cycles.
//
// Stage s takes index 2^s + (i mod 2^s) for butterfly i = P c + LANE. From stage log2 P on that is word
// 2^(s - log2 P) + c mod 2^(s - log2 P) of this lane; before, one of the first P words of the table a lane, which
// `early` and `stage` select.
module twiddle_rom
#(
    parameter int LOG_N = 12,
    parameter int LOG_P = 3,
    parameter int LIMB = 0,
    parameter int LANE = 0
) (
    input  logic                   clk,
    input  logic                   early,
    input  logic [3:0]             stage,
    input  logic [LOG_N-LOG_P-1:0] addr,
    output logic [52:0]            w
);
  /*verilator no_inline_module*/  // one function for all of them, not one each
  localparam int DEPTH = 1 << (LOG_N - LOG_P);

  // The tables' names end in hexadecimal digits.
  function automatic logic [7:0] digit(input integer value);
    digit = value < 10 ? 8'd48 + 8'(value) : 8'd87 + 8'(value);
  endfunction

  (* ram_style = "block" *) logic [52:0] mem[DEPTH];
  initial $readmemh({`FC_TABLES, "/limb", digit(LIMB), "_p", digit(LOG_P), "_lane", digit(LANE), ".hex"}, mem);

  logic [52:0] first[16];
  for (genvar s = 0; s < 16; s++) begin : g_first
    if (s < LOG_P) begin : g_used
      localparam int INDEX = (1 << s) + (LANE % (1 << s));
      assign first[s] = LIMB == 0 ? fc_constants_pkg::FIRST_0[INDEX*53+:53] : fc_constants_pkg::FIRST_1[INDEX*53+:53];
    end else begin : g_none
      assign first[s] = '0;
    end
  end

  logic [52:0] late;
  logic early1;
  logic [3:0] stage1;
  always_ff @(posedge clk) begin
    late <= mem[addr];
    early1 <= early;
    stage1 <= stage;
    w <= early1 ? first[stage1] : late;
  end
endmodule
