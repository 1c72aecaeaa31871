/* The simulated accelerator: fc_top under Verilator, its streams and the memory beside it. One owner at a time.
 *
 * What is fed waits in front of the device as a DMA engine's buffers would; what leaves is kept by packet. Cycles pass
 * only in fc_sim_run and in accesses to registers. The link between host and card is not here: its time follows from
 * bytes (crates/fedcipher-accel), and is never in the cycles. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct fc_sim fc_sim;

/* How the surroundings behave. */
typedef struct {
  uint32_t memory_latency;  /* cycles from a mask's write to the first time it can be read back */
  uint32_t refresh_every;   /* cycles between two refreshes of the memory, 0 for none */
  uint32_t refresh_for;     /* cycles that one takes: nothing goes in or out */
  uint32_t stall_in;        /* of 256 cycles, how many streams to the device pause, at random */
  uint32_t stall_out;       /* the same of streams from it */
  uint64_t seed;            /* of these pauses */
} fc_sim_setup;

fc_sim *fc_sim_new(const fc_sim_setup *setup);
void fc_sim_free(fc_sim *sim);
/* Lanes P and log2 N of the model that was built. */
uint32_t fc_sim_lanes(void);
/* 0, or the bus's refusal (2, SLVERR); -1 where the device did not answer within 4096 cycles. */
int fc_sim_write(fc_sim *sim, uint8_t address, uint32_t value);
int fc_sim_read(fc_sim *sim, uint8_t address, uint32_t *value);
/* Beats of 16 bytes behind what waits on stream 0 (s_a) or 1 (s_b); `last` ends a packet. */
void fc_sim_feed(fc_sim *sim, int stream, const uint8_t *bytes, size_t beats, int last);
/* Forgets what waits to go in and what has come out. */
void fc_sim_drop(fc_sim *sim);
/* Beats that still wait to go in. */
size_t fc_sim_waiting(const fc_sim *sim, int stream);
/* Until the device asks for attention (irq) or `cycles` have passed; how many did. */
uint64_t fc_sim_run(fc_sim *sim, uint64_t cycles);
/* So many cycles, whatever the device asks for. */
void fc_sim_idle(fc_sim *sim, uint64_t cycles);
/* The next whole packet that has left: its bytes, at most `room`, into `out`; *aborted for one that the device broke
 * off. Its length, or -1 for none. */
long fc_sim_take(fc_sim *sim, uint8_t *out, size_t room, int *aborted);
/* Pulls the reset for so many cycles. */
void fc_sim_reset(fc_sim *sim, uint32_t cycles);
/* For tests: while `stream` 0 (m_mask) or 1 (m_out) is held, nobody takes what leaves by it. */
void fc_sim_hold(fc_sim *sim, int stream, int hold);
/* Cycles since it was made. */
uint64_t fc_sim_cycles(const fc_sim *sim);
/* Beats that went to and came from the memory beside the device. */
void fc_sim_memory(const fc_sim *sim, uint64_t *to, uint64_t *from);
/* For tests: the memories of which a bit is set. Bits 0 and 1 for limb 0's io memory (two banks), 2 and 3 for its work
 * memory, 4 for its key's; 5 to 9 for limb 1's. */
uint32_t fc_sim_left(fc_sim *sim);

#ifdef __cplusplus
}
#endif
