//@ Items
struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
    ThreadState sum[kRunItems];  // totals of the first items by extend: set by scan_items
};
