// a s + e mod q for a small signed e. Latency 3 cycles, one coefficient a cycle.
module masker
(
    input  logic         clk,
    input  logic [105:0] product,
    input  logic [7:0]   e,
    output logic [105:0] sum
);
  logic [107:0] plain1, plain2, more, less;  // two's complement
  always_ff @(posedge clk) begin
    plain1 <= {2'b0, product} + {{100{e[7]}}, e};

    plain2 <= plain1;
    more <= plain1 + {2'b0, fc_constants_pkg::Q};
    less <= plain1 - {2'b0, fc_constants_pkg::Q};

    sum <= plain2[107] ? more[105:0] : less[107] ? plain2[105:0] : less[105:0];
  end
endmodule
