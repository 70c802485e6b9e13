"""Training, selection and evaluation of predictors."""
