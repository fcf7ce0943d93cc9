//@ Items
struct Items {  // states of a thread's consecutive items, or rows
    ThreadState item[kRunItems];
};
