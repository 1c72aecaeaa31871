// Registers, commands and errors. docs/explanation/accelerator.md is the programmer's page.
//
// One command at a time. What goes wrong in a command ends it: the device drops what arrives and ends what it sends,
// until CLEAR. What is refused at the bus (SLVERR) changes nothing of a command under way. Both leave a code.
module controller
#(
    parameter int LOG_N = 12,
    parameter int LOG_P = 3,
    parameter int SLOTS = 4096,  // masks that the memory beside the device holds
    localparam int LB = LOG_N - LOG_P
) (
    input  logic         clk,
    input  logic         rst,
    // Registers
    input  logic         write,
    input  logic [7:0]   write_addr,
    input  logic [31:0]  write_data,
    output logic         write_refuse,
    input  logic         read,
    input  logic [7:0]   read_addr,
    output logic [31:0]  read_data,
    output logic         read_refuse,
    output logic         hold,
    // What is running
    output logic         preparing,
    output logic         encrypting,
    output logic         decrypting,
    output logic         keying,
    output logic         drain,      // take and drop what arrives
    output logic         start,      // first cycle of a command
    output logic         flush,      // nothing of before may go on
    output logic         wipe,
    output logic         wipe_key,
    output logic [LB-1:0] wipe_line,
    // What it runs with
    output logic [15:0]  count,
    output logic [12:0]  used,
    output logic [12:0]  used_last,
    output logic         by_shift,
    output logic [6:0]   shift,
    output logic [4:0]   drop,
    output logic [7:0]   wire_bits,
    // The key, a ternary coefficient a cycle: 0, 1, 3 for -1
    output logic         key_valid,
    output logic [1:0]   key_word,
    input  logic         key_ready,
    input  logic         key_done,
    // What happens
    input  logic         packet_left,    // a packet's last beat has been taken by whom it is for
    input  logic         mask_used,      // a packet of masks has been read back
    input  logic         progress,
    input  logic         starved,
    input  logic         bad_length,
    input  logic         bad_padding,
    input  logic         bad_residue,
    input  logic         bad_value,
    input  logic         bad_plaintext,
    input  logic         bad_mask,
    output logic         irq
);
  localparam logic [7:0]
      R_ID = 8'h00, R_CONFIG = 8'h04, R_COMMAND = 8'h08, R_STATUS = 8'h0c, R_ERROR = 8'h10, R_COUNT = 8'h14,
      R_USED = 8'h18, R_USED_LAST = 8'h1c, R_MODE = 8'h20, R_FORMAT = 8'h24, R_TIMEOUT = 8'h28,
      R_CYCLES = 8'h30, R_CYCLES_HIGH = 8'h34, R_STARVED = 8'h38, R_KEY = 8'h80;
  localparam logic [31:0] ID = 32'h46434231;  // "FCB1"

  localparam logic [31:0]
      C_KEY = 1, C_PREPARE = 2, C_ENCRYPT = 3, C_DECRYPT = 4, C_WIPE = 5, C_CLEAR = 6;

  localparam logic [7:0]
      E_NONE = 0, E_COMMAND = 1, E_BUSY = 2, E_ARGUMENT = 3, E_NO_KEY = 4, E_NO_MASK = 5, E_FULL = 6, E_LENGTH = 7,
      E_PADDING = 8, E_RESIDUE = 9, E_VALUE = 10, E_PLAINTEXT = 11, E_KEY_VALUE = 12, E_KEY_READ = 13, E_KEY_STATE = 14,
      E_ADDRESS = 15, E_TIMEOUT = 16, E_MASK_LENGTH = 17;

  typedef enum logic [2:0] {WIPING, IDLE, KEY, PREPARE, ENCRYPT, DECRYPT, FAILED} state_t;
  state_t state;

  logic [15:0] left;      // packets that have not left
  logic [12:0] masks;     // prepared and not used
  logic key_there, wipe_all, done;
  logic [7:0] error;
  logic [LB+1:0] wipe_count;
  logic [31:0] key_bits;
  logic [4:0] key_left;   // coefficients of the last write
  logic [LOG_N:0] key_missing;
  logic [63:0] cycles;
  logic [31:0] waited, timeout, quiet;

  // ---- reads. The key register and what is not there have no value.
  always_comb begin
    read_refuse = 1'b0;
    read_data = '0;
    unique case (read_addr)
      R_ID: read_data = ID;
      R_CONFIG: read_data = {16'd1, 8'(LOG_P), 8'(LOG_N)};
      R_STATUS: read_data = {3'b0, masks, 10'b0, state == WIPING, state == KEY, key_there, state == FAILED, done,
                             accepted || (state != IDLE && state != FAILED)};
      R_ERROR: read_data = 32'(error);
      R_COUNT: read_data = 32'(count);
      R_USED: read_data = 32'(used);
      R_USED_LAST: read_data = 32'(used_last);
      R_MODE: read_data = {17'b0, shift, 7'b0, by_shift};
      R_FORMAT: read_data = {16'b0, wire_bits, 3'b0, drop};
      R_TIMEOUT: read_data = timeout;
      R_CYCLES: read_data = cycles[31:0];
      R_CYCLES_HIGH: read_data = cycles[63:32];
      R_STARVED: read_data = waited;
      default: read_refuse = 1'b1;
    endcase
  end

  // ---- commands
  logic [7:0] refusal;    // why a write is refused
  logic command, busy;
  // A command that is not refused begins a cycle later: what decides that is deep, and what it changes is wide.
  logic accepted;
  logic [2:0] which;
  // What a command is refused for follows from registers, a cycle late: two writes are two cycles apart, and one behind
  // the end of a command, with which `masks` changes, is held for one.
  logic bad_argument, too_few, too_many, ended;
  always_ff @(posedge clk) begin
    bad_argument <= count == 0 || used == 0 || used_last == 0 || used > 13'(1 << LOG_N) ||
                    used_last > 13'(1 << LOG_N) || drop > 30 || wire_bits == 0 || wire_bits > 128 ||
                    (by_shift && (shift == 0 || shift > 104));
    too_few <= count > 16'(masks);
    too_many <= 17'(masks) + 17'(count) > 17'(SLOTS);
    ended <= packet_left && left == 1;
  end
  always_comb begin
    command = write && write_addr == R_COMMAND;
    busy = state != IDLE;
    refusal = E_NONE;
    unique case (write_addr)
      R_COMMAND:
      unique case (write_data)
        C_WIPE, C_CLEAR: refusal = E_NONE;
        C_KEY: refusal = busy ? E_BUSY : E_NONE;
        C_PREPARE, C_DECRYPT, C_ENCRYPT:
        if (busy) refusal = E_BUSY;
        else if (bad_argument) refusal = E_ARGUMENT;
        else if (write_data == C_ENCRYPT) refusal = too_few ? E_NO_MASK : E_NONE;
        else if (!key_there) refusal = E_NO_KEY;
        else if (write_data == C_PREPARE && too_many) refusal = E_FULL;
        default: refusal = E_COMMAND;
      endcase
      R_COUNT, R_USED, R_USED_LAST, R_MODE, R_FORMAT, R_TIMEOUT: refusal = busy ? E_BUSY : E_NONE;
      R_KEY: refusal = state == KEY && key_missing != 0 ? E_NONE : E_KEY_STATE;
      default: refusal = E_ADDRESS;
    endcase
    write_refuse = refusal != E_NONE;
    // The next word of the key, once the last has gone in.
    hold = (state == KEY && key_left != 0) || ended;
  end

  logic [7:0] failure;  // of a command under way
  logic active, expired;
  assign active = state != IDLE && state != FAILED && state != WIPING;
  always_ff @(posedge clk) expired <= active && !rst && timeout != 0 && quiet == timeout;
  always_comb begin
    failure = E_NONE;
    if (active) begin
      if (bad_length) failure = E_LENGTH;
      else if (bad_mask) failure = E_MASK_LENGTH;
      else if (bad_residue) failure = E_RESIDUE;
      else if (bad_padding) failure = E_PADDING;
      else if (bad_value) failure = E_VALUE;
      else if (bad_plaintext) failure = E_PLAINTEXT;
      else if (state == KEY && key_left != 0 && key_word == 2'b10) failure = E_KEY_VALUE;
      else if (expired) failure = E_TIMEOUT;
    end
  end

  assign preparing = state == PREPARE;
  assign encrypting = state == ENCRYPT;
  assign decrypting = state == DECRYPT;
  assign keying = state == KEY;
  assign drain = state == FAILED;
  assign flush = state == WIPING || state == FAILED;
  assign wipe = state == WIPING;
  assign wipe_key = wipe_all;
  assign wipe_line = wipe_count[LB-1:0];
  assign key_word = key_bits[1:0];
  assign key_valid = state == KEY && key_left != 0 && key_word != 2'b10;
  assign irq = done || state == FAILED;

  always_ff @(posedge clk) begin
    start <= 1'b0;
    accepted <= command && !write_refuse && !rst;
    which <= write_data[2:0];
    if (rst) begin
      state <= WIPING;
      wipe_all <= 1'b1;
      wipe_count <= '0;
      key_there <= 1'b0;
      key_bits <= '0;
      key_left <= '0;
      key_missing <= '0;
      masks <= '0;
      left <= '0;
      done <= 1'b0;
      error <= E_NONE;
      count <= 16'd1;
      used <= 13'(1 << LOG_N);
      used_last <= 13'(1 << LOG_N);
      by_shift <= 1'b0;
      shift <= 7'd1;
      drop <= '0;
      wire_bits <= 8'd106;
      cycles <= '0;
      waited <= '0;
      timeout <= 32'd1 << 26;
      quiet <= '0;
    end else begin
      if (active) begin
        cycles <= cycles + 1'b1;
        if (starved) waited <= waited + 1'b1;
        quiet <= progress ? '0 : quiet + 1'b1;
      end

      unique case (state)
        WIPING: begin
          wipe_count <= wipe_count + 1'b1;
          // Twice over all lines, so that zeros have passed through everything behind them too.
          if (wipe_count == {2'b01, {LB{1'b1}}}) state <= IDLE;
          if (wipe_all) key_there <= 1'b0;
          key_bits <= '0;
          key_left <= '0;
          key_missing <= '0;
          masks <= '0;
        end
        KEY: begin
          if (key_valid && key_ready) begin
            key_bits <= {2'b0, key_bits[31:2]};
            key_left <= key_left - 1'b1;
          end
          if (key_done) begin
            // s itself is still in the io and work memories.
            key_there <= 1'b1;
            done <= 1'b1;
            state <= WIPING;
            wipe_all <= 1'b0;
            wipe_count <= '0;
          end
        end
        PREPARE, ENCRYPT, DECRYPT:
        if (packet_left) begin
          left <= left - 1'b1;
          if (left == 1) begin
            state <= IDLE;
            done <= 1'b1;
          end
        end
        default: ;
      endcase
      if (state == PREPARE && packet_left) masks <= masks + 1'b1;
      if (state == ENCRYPT && mask_used) masks <= masks - 1'b1;

      if (failure != E_NONE) begin
        state <= FAILED;
        done <= 1'b0;
        masks <= '0;
        key_bits <= '0;
        key_left <= '0;
        if (state == KEY) key_there <= 1'b0;
        if (error == E_NONE) error <= failure;
      end

      if (read && read_refuse && error == E_NONE) error <= read_addr == R_KEY ? E_KEY_READ : E_ADDRESS;
      if (write && write_refuse) begin
        if (error == E_NONE) error <= refusal;
      end else if (write) begin
        unique case (write_addr)
          R_COUNT: count <= write_data[15:0];
          R_USED: used <= write_data[12:0];
          R_USED_LAST: used_last <= write_data[12:0];
          R_MODE: {shift, by_shift} <= {write_data[14:8], write_data[0]};
          R_FORMAT: {wire_bits, drop} <= {write_data[15:8], write_data[4:0]};
          R_TIMEOUT: timeout <= write_data;
          R_KEY: begin
            key_bits <= write_data;
            key_left <= 5'd16;
            key_missing <= key_missing - (LOG_N + 1)'(16);
          end
          default: ;
        endcase
      end
      if (command && !write_refuse) done <= 1'b0;
      if (accepted) begin
        start <= 1'b1;
        done <= 1'b0;
        cycles <= '0;
        waited <= '0;
        quiet <= '0;
        left <= count;
        unique case (32'(which))
          C_KEY: begin
            state <= KEY;
            key_there <= 1'b0;
            key_missing <= (LOG_N + 1)'(1 << LOG_N);
          end
          C_PREPARE: state <= PREPARE;
          C_ENCRYPT: state <= ENCRYPT;
          C_DECRYPT: state <= DECRYPT;
          default: begin
            state <= WIPING;
            wipe_count <= '0;
            // A key that has come in part is no key.
            wipe_all <= 32'(which) == C_WIPE || !key_there || state == KEY || (state == WIPING && wipe_all);
            error <= E_NONE;
          end
        endcase
      end
    end
  end
endmodule
