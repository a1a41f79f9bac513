"""The words that all parts share: tasks, plans, jobs, random keys, errors. No torch and no SimPy."""
