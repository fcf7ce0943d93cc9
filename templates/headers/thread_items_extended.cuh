//@ Items
struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRun];
    ThreadState sum[kRun];  // totals of the first items by extend: set by scan_items
};

