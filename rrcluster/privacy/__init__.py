"""The basis of the guarantee: sensitivities, clipping, mechanisms, events, accountants, plan and ledger."""
