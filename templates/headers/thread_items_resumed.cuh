//@ Items
struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRun];
    ThreadState start[kRun];  // what items that begin a segment continue from
};

