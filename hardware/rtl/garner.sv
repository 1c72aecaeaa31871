// The number mod q behind its residues: r0 + P0 ((r1 - r0) P0^-1 mod P1). P0 is multiplied by in shifts and adds.
//
// Latency 20 cycles (fc_pkg::GARNER_LATENCY), one coefficient a cycle. r0 < P0 < 2 P1, r1 < P1.
module garner
#(
    parameter int CA = 26,
    parameter int CB = 17,
    localparam int K = fc_pkg::K,
    localparam int S = fc_pkg::S
) (
    input  logic           clk,
    input  logic [K-1:0]   r0,
    input  logic [K-1:0]   r1,
    output logic [2*K-1:0] x
);
  logic [K:0] less, apart;
  logic [K-1:0] low1, low2, high1, high2, reduced, difference;
  always_ff @(posedge clk) begin
    less <= {1'b0, r0} - {1'b0, fc_constants_pkg::P1};
    low1 <= r0;
    high1 <= r1;

    reduced <= less[K] ? low1 : less[K-1:0];
    high2 <= high1;

    apart <= {1'b0, high2} - {1'b0, reduced};

    difference <= apart[K-1:0] + (apart[K] ? fc_constants_pkg::P1 : '0);
  end
  delay #(.W(K), .LATENCY(3 + fc_pkg::MODMUL_LATENCY)) u_low (.clk, .d(low1), .q(low2));

  logic [K-1:0] h;
  modmul #(
      .K(K), .S(S), .A(fc_pkg::C_A), .B(fc_pkg::C_B_1), .D(fc_pkg::C_D), .E(fc_pkg::C_E), .CA(CA), .CB(CB)
  ) u_modmul (.clk, .a(difference), .b(fc_constants_pkg::GARNER), .r(h));

  // P0 h = 2^K h - C 2^S h + h.
  logic [K+6:0] h_c;
  times_c #(.W(K), .A(fc_pkg::C_A), .B(fc_pkg::C_B_0), .D(fc_pkg::C_D), .E(fc_pkg::C_E)) u_c (.clk, .x(h), .y(h_c));
  logic [K:0] ends1, ends2;
  logic [K-1:0] h1, h2, h3;
  logic [K+S+7:0] rest;  // two's complement
  always_ff @(posedge clk) begin
    ends1 <= {1'b0, low2} + {1'b0, h};
    h1 <= h;

    ends2 <= ends1;
    h2 <= h1;

    rest <= (K + S + 8)'(ends2) - ((K + S + 8)'(h_c) << S);
    h3 <= h2;

    x <= {h3, K'(0)} + {{(K - S - 8) {rest[K+S+7]}}, rest};
  end
endmodule
