"""Everything the guarantee rests on: sensitivities, clipping, mechanisms, events, accountants, plan and ledger."""
