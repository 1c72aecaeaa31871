// The C interface over Verilator's model: see fc_sim.h.
#include "fc_sim.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "Vfc_top.h"
#include "Vfc_top___024root.h"
#include "Vfc_top__Syms.h"
#include "verilated.h"

#ifndef FC_LOG_P
#error "FC_LOG_P must be the model's LOG_P"
#endif

double sc_time_stamp() { return 0; }

namespace {

struct Beat {
  uint32_t word[4];
  bool last;
};

struct Stored {
  Beat beat;
  uint64_t ready;
};

struct Packet {
  std::vector<uint8_t> bytes;
  bool aborted = false;
};

// xorshift64*: pauses need no better.
struct Random {
  uint64_t state;
  bool pause(uint32_t of_256) {
    if (of_256 == 0) return false;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return ((state * 0x2545F4914F6CDD1DULL) >> 56) < of_256;
  }
};

}  // namespace

struct fc_sim {
  fc_sim_setup setup;
  std::unique_ptr<VerilatedContext> context;
  std::unique_ptr<Vfc_top> top;
  Random random;
  std::deque<Beat> in[2];
  bool offered[2] = {false, false};  // valid stays up until it is taken
  std::deque<Stored> memory;
  bool memory_offered = false;
  bool held[2] = {false, false};
  std::deque<Packet> out;
  Packet open;
  uint64_t now = 0, to_memory = 0, from_memory = 0;

  bool refreshing() const {
    return setup.refresh_every != 0 && now % setup.refresh_every < setup.refresh_for;
  }

  template <typename Wide>
  static void put(Wide &wide, const Beat &beat) {
    for (int i = 0; i < 4; i++) wide[i] = beat.word[i];
  }

  void offer(int k, CData &valid, CData &last, VlWide<4> &data) {
    if (!offered[k]) offered[k] = !in[k].empty() && !random.pause(setup.stall_in);
    valid = offered[k];
    if (offered[k]) {
      last = in[k].front().last;
      put(data, in[k].front());
    }
  }

  void cycle() {
    Vfc_top &t = *top;
    // What the surroundings offer in this cycle.
    offer(0, t.s_a_tvalid, t.s_a_tlast, t.s_a_tdata);
    offer(1, t.s_b_tvalid, t.s_b_tlast, t.s_b_tdata);
    if (!memory_offered) memory_offered = !memory.empty() && memory.front().ready <= now && !refreshing();
    t.s_mask_tvalid = memory_offered;
    if (memory_offered) {
      t.s_mask_tlast = memory.front().beat.last;
      put(t.s_mask_tdata, memory.front().beat);
    }
    t.m_mask_tready = !refreshing() && !held[0];
    t.m_out_tready = !random.pause(setup.stall_out) && !held[1];
    t.eval();

    // What is exchanged at its end.
    const bool a = t.s_a_tvalid && t.s_a_tready, b = t.s_b_tvalid && t.s_b_tready;
    const bool back = t.s_mask_tvalid && t.s_mask_tready;
    if (t.m_mask_tvalid && t.m_mask_tready) {
      Stored stored{{{0, 0, 0, 0}, t.m_mask_tlast != 0}, now + setup.memory_latency};
      for (int i = 0; i < 4; i++) stored.beat.word[i] = t.m_mask_tdata[i];
      memory.push_back(stored);
      to_memory++;
    }
    if (t.m_out_tvalid && t.m_out_tready) {
      for (int i = 0; i < 16; i++) {
        if (t.m_out_tkeep >> i & 1) open.bytes.push_back(t.m_out_tdata[i / 4] >> (8 * (i % 4)) & 0xff);
      }
      if (t.m_out_tlast) {
        open.aborted = t.m_out_tuser;
        out.push_back(std::move(open));
        open = Packet();
      }
    }
    const bool flush = t.mask_flush;
    t.clk = 1;
    t.eval();
    t.clk = 0;
    t.eval();
    now++;
    if (a) in[0].pop_front(), offered[0] = false;
    if (b) in[1].pop_front(), offered[1] = false;
    if (back) memory.pop_front(), memory_offered = false, from_memory++;
    if (flush) memory.clear(), memory_offered = false;
  }
};

fc_sim *fc_sim_new(const fc_sim_setup *setup) {
  auto sim = std::make_unique<fc_sim>();
  sim->setup = *setup;
  sim->random.state = setup->seed | 1;
  sim->context = std::make_unique<VerilatedContext>();
  // Memories and registers begin with noise, as a device's do.
  sim->context->randReset(2);
  sim->context->randSeed(static_cast<int>(setup->seed % 0x7fffffff) + 1);
  sim->top = std::make_unique<Vfc_top>(sim->context.get(), "top");
  Vfc_top &t = *sim->top;
  t.clk = 0;
  t.rst_n = 0;
  t.s_axil_awvalid = t.s_axil_wvalid = t.s_axil_arvalid = 0;
  t.s_axil_bready = t.s_axil_rready = 1;
  t.s_axil_wstrb = 0xf;
  t.s_a_tvalid = t.s_b_tvalid = t.s_mask_tvalid = 0;
  t.eval();
  fc_sim *made = sim.release();
  fc_sim_reset(made, 4);
  return made;
}

void fc_sim_free(fc_sim *sim) {
  sim->top->final();
  delete sim;
}

uint32_t fc_sim_lanes(void) { return 1u << FC_LOG_P; }

namespace {
const int PATIENCE = 4096;
}

int fc_sim_write(fc_sim *sim, uint8_t address, uint32_t value) {
  Vfc_top &t = *sim->top;
  t.s_axil_awaddr = address;
  t.s_axil_wdata = value;
  t.s_axil_awvalid = t.s_axil_wvalid = 1;
  int answer = -1;
  for (int i = 0; i < PATIENCE; i++) {
    t.eval();
    const bool taken = t.s_axil_awready && t.s_axil_wready;
    const bool answered = t.s_axil_bvalid;
    if (answered) answer = t.s_axil_bresp;
    sim->cycle();
    if (taken) t.s_axil_awvalid = t.s_axil_wvalid = 0;
    if (answered) break;
  }
  t.s_axil_awvalid = t.s_axil_wvalid = 0;
  return answer;
}

int fc_sim_read(fc_sim *sim, uint8_t address, uint32_t *value) {
  Vfc_top &t = *sim->top;
  t.s_axil_araddr = address;
  t.s_axil_arvalid = 1;
  int answer = -1;
  for (int i = 0; i < PATIENCE; i++) {
    t.eval();
    const bool taken = t.s_axil_arready;
    const bool answered = t.s_axil_rvalid;
    if (answered) {
      answer = t.s_axil_rresp;
      *value = t.s_axil_rdata;
    }
    sim->cycle();
    if (taken) t.s_axil_arvalid = 0;
    if (answered) break;
  }
  t.s_axil_arvalid = 0;
  return answer;
}

void fc_sim_feed(fc_sim *sim, int stream, const uint8_t *bytes, size_t beats, int last) {
  for (size_t i = 0; i < beats; i++) {
    Beat beat;
    std::memcpy(beat.word, bytes + 16 * i, 16);
    beat.last = last && i + 1 == beats;
    sim->in[stream & 1].push_back(beat);
  }
}

void fc_sim_drop(fc_sim *sim) {
  for (int k = 0; k < 2; k++) sim->in[k].clear(), sim->offered[k] = false;
  sim->out.clear();
  sim->open = Packet();
}

size_t fc_sim_waiting(const fc_sim *sim, int stream) { return sim->in[stream & 1].size(); }

uint64_t fc_sim_run(fc_sim *sim, uint64_t cycles) {
  const uint64_t before = sim->now;
  while (sim->now - before < cycles && !sim->top->irq) sim->cycle();
  return sim->now - before;
}

void fc_sim_idle(fc_sim *sim, uint64_t cycles) {
  for (uint64_t i = 0; i < cycles; i++) sim->cycle();
}

long fc_sim_take(fc_sim *sim, uint8_t *out, size_t room, int *aborted) {
  if (sim->out.empty()) return -1;
  const Packet packet = std::move(sim->out.front());
  sim->out.pop_front();
  *aborted = packet.aborted;
  std::memcpy(out, packet.bytes.data(), std::min(room, packet.bytes.size()));
  return static_cast<long>(packet.bytes.size());
}

void fc_sim_reset(fc_sim *sim, uint32_t cycles) {
  sim->top->rst_n = 0;
  for (uint32_t i = 0; i < cycles; i++) sim->cycle();
  sim->top->rst_n = 1;
  // What registers held before the reset was seen is nobody's.
  sim->memory.clear();
  sim->memory_offered = false;
  sim->out.clear();
  sim->open = Packet();
}

namespace {

template <typename Ram>
bool any(const Ram &ram) {
  for (const auto &word : ram.__PVT__mem.m_storage) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(&word);
    for (size_t i = 0; i < sizeof word; i++)
      if (bytes[i]) return true;
  }
  return false;
}

}  // namespace

uint32_t fc_sim_left(fc_sim *sim) {
  const auto &r = *sim->top->rootp;
  uint32_t left = 0, bit = 1;
#define LIMB(limb) \
  r.__PVT__fc_top__DOT__##limb##__DOT__u_io0, r.__PVT__fc_top__DOT__##limb##__DOT__u_io1, \
      r.__PVT__fc_top__DOT__##limb##__DOT__u_work0, r.__PVT__fc_top__DOT__##limb##__DOT__u_work1, \
      r.__PVT__fc_top__DOT__##limb##__DOT__u_key
  for (const auto *ram : {LIMB(u_limb0), LIMB(u_limb1)}) {
    if (any(*ram)) left |= bit;
    bit <<= 1;
  }
#undef LIMB
  return left;
}

void fc_sim_hold(fc_sim *sim, int stream, int hold) { sim->held[stream & 1] = hold != 0; }

uint64_t fc_sim_cycles(const fc_sim *sim) { return sim->now; }

void fc_sim_memory(const fc_sim *sim, uint64_t *to, uint64_t *from) {
  *to = sim->to_memory;
  *from = sim->from_memory;
}
