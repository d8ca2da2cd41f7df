-- What a worker says inside the transactions of its handlers.

-- name: doom
-- After a refused settle the transaction must not be committed, also by a program that catches the
-- error: a statement that fails sees to that. (The client runs it, ignores its error and raises
-- LeaseLost.)
do $$ begin raise exception using errcode = 'QH004', message = 'the lease was lost'; end $$;
