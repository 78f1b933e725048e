namespace fmm {
struct alignas(64) Map { long long address, length, lines, layers, leading, layer, across, down, exchange, rest[7]; };
static void copy(void* to, const Map* m, int x, int y, int z) {
    for (int j = 0; j < m->down; ++j)
        for (int i = 0; i < m->across; ++i) {
            const bool there = x + i >= 0 && x + i < m->length && y + j >= 0 && y + j < m->lines && z < m->layers;
            const char* line = reinterpret_cast<const char*>(m->address) + z * m->layer + (y + j) * m->leading;
            int place = 4 * (j * m->across + i);
            if (m->exchange) place ^= place / 128 % (m->exchange / 16) * 16;
            *reinterpret_cast<float*>(static_cast<char*>(to) + place) =
                there ? *reinterpret_cast<const float*>(line + 4 * (x + i)) : 0.0f;
        }
}
}
