static void arrive_at(Gate* gate, int) { arrive(gate); }
template <int COUNT> void bring_to_all(void* to, const Map* m, int x, int y, int z, Gate* g) { bring(to, m, x, y, z, g); }
static void send(const Map*, const void*, int, int, int) { __builtin_trap(); }
static void send_added(const Map*, const void*, int, int, int) { __builtin_trap(); }
static void end_of_sending() {}
static void until_read() {}
static void until_sent() {}
static void engine_sees() {}
template <int REGISTERS> void want_registers() {}
template <int REGISTERS> void leave_registers() {}

// What a thread has asked for and not waited for: instructions, in groups.
struct Asked { float* x; unsigned long long a, b; int count, keeps, left_turned, right_turned, last; };
struct Queue { Asked asked[64]; int begin, end, groups; };
static Queue queues[1024];
struct Meeting { unsigned arrived, times; };
static Meeting meetings[8];
static void warpgroup_meets() {
    Meeting& m = meetings[threadIdx.x / 128];
    const unsigned before = m.times;
    if (++m.arrived == 128) m.arrived = 0, ++m.times;
    while (m.times == before) let_others();
}
static void begin_multiplying() {}
static void end_of_multiplying() {
    Queue& q = queues[threadIdx.x];
    q.asked[(q.end - 1) % 64].last = 1;
    ++q.groups;
}
static float tabled(unsigned short half) {
    static float all[1 << 16];
    static bool made;
    for (unsigned i = 0; !made && i < 1 << 16; ++i) all[i] = planes::widened(i);
    made = true;
    return all[half];
}
// A number of an operand, as PTX's manual has it: 8 lines of 128 bytes after each other, or along the outer dimension 64
// numbers in each.
static float number_at(unsigned long long told, bool turned, int out, int k) {
    const unsigned begin = (told & 0x3fff) << 4, next = (told >> 16 & 0x3fff) << 4, eight = (told >> 32 & 0x3fff) << 4;
    if (told >> 62 != 1) __builtin_trap();
    const unsigned at = turned ? begin + out / 64 * next + k / 8 * eight + k % 8 * 128 + out % 64 * 2
                               : begin + out / 8 * eight + out % 8 * 128 + k * 2;
    return tabled(*reinterpret_cast<const unsigned short*>(shared_begin + exchanged(at)));
}
static void multiply_now(const Asked& asked) {
    const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    for (int r = 0; r < 2; ++r) {
        float left[16];
        for (int k = 0; k < 16; ++k) left[k] = number_at(asked.a, asked.left_turned, row + 8 * r, k);
        for (int j = 0; j < asked.count; j += 4)
            for (int c = 0; c < 2; ++c) {
                float& x = asked.x[j + 2 * r + c];
                double sum = asked.keeps ? x : 0;
                for (int k = 0; k < 16; ++k)
                    sum += static_cast<double>(left[k]) * number_at(asked.b, asked.right_turned, 2 * j + lane % 4 * 2 + c, k);
                x = static_cast<float>(sum);
            }
    }
}
template <int PENDING> void until_multiplied() {
    Queue& q = queues[threadIdx.x];
    while (q.groups > PENDING) {
        const Asked& next = q.asked[q.begin++ % 64];
        multiply_now(next);
        q.groups -= next.last;
    }
    warpgroup_meets();  // (an instruction is a warpgroup's)
}

