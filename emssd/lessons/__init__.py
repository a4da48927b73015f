"""Ten lessons: their texts, exercises and checks. Nothing here needs torch."""
