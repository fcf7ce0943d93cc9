// The items of a thread: as loaded, and as results.
#pragma once

template <class Item>
using Loads = Vector<Item>[kThreadLoads];

// An item for each item of a vector load, but wider than a vector load: what all items of a line share, or the results
// of another scan.
template <class Item>
struct WideVector {
    Item item[kItemsPerLoad];
};

template <class Item>
using Stores = Vector<Item, kItemsPerStore>[kRunItems / kItemsPerStore];

template <class Item>
using One = Item;

typedef Outputs<Stores> Results;  // of Items
typedef Outputs<One> Result;      // of one item
