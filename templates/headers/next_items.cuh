// Operands that are read one item further on.
#pragma once

// The items after those of an access in scan order, the last of which is read where it is in the row; `from`: the
// lowest of the access in memory, at a position.
template <class Item>
__device__ __forceinline__ Vector<Item> next_items(const Vector<Item>& own, const Item* from, long long step, bool live,
                                                   Position position, Position length) {
    Vector<Item> next;
#pragma unroll
    for (int k = 0; k + 1 < kItemsPerLoad; ++k)
        next.item[place_of(k, kItemsPerLoad)] = own.item[place_of(k + 1, kItemsPerLoad)];
    const bool there = live && position + kItemsPerLoad >= 0 && position + kItemsPerLoad < length;
    next.item[place_of(kItemsPerLoad - 1, kItemsPerLoad)] =
        there ? from[(kReverse ? -1 : kItemsPerLoad) * step] : Item{};
    return next;
}

// Replace the items of an operand by those that follow the thread's `own` in scan order.
template <class Item, class Part>
__device__ __forceinline__ void move_on(Vector<Item> (&to)[kThreadLoads], const Vector<Item> (&own)[kThreadLoads],
                                        const Part& part, const Item* from, long long step) {
#pragma unroll
    for (int j = 0; j < kThreadLoads; ++j)
        to[j] = next_items(own[j], from + along(j * part.step) * step, step, part.live, part.at(j), part.length);
}
